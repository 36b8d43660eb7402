"""One process of a job that a scheduler started: a node, or a rank."""

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hccl_py.launcher.exit_codes import MISSING_NODE, UsageError
from hccl_py.launcher.job.layout import Slot
from hccl_py.launcher.machine.lookups import address_of
from hccl_py.launcher.options import CONTROL_PORT_OFFSET, DEFAULT_MASTER_PORT, JobOptions
from hccl_py.launcher.own_lines import keep_trying, say
from hccl_py.launcher.parts import several_nodes
from hccl_py.schedulers.rendezvous import Rendezvous, find_rendezvous
from hccl_py.schedulers.scheduled import NODE_OPTIONS, Scheduled, Task
from hccl_py.transport.errors import HcclError
from hccl_py.transport.network.secret import SECRET

_NODE_OPTIONS = NODE_OPTIONS.format("N", "I")


def part(options: JobOptions, found: Scheduled, folder: Path) -> Callable[[], int]:
    """Return a function that runs this process's part; UsageError: the two contradict."""
    index, num_agents, slots = place(options, found)
    where = given_place(options, found) or _found_place(options, found)
    if where.secret is not None:
        os.environ.setdefault(SECRET, where.secret)
    say(f"{found}; node 0 is at {where.address} ({where.origin})")
    left_s = options.connect_timeout_s
    if found.is_pod:
        left_s = wait_until_known(where.address, left_s)
    known = options._replace(
        num_nodes=num_agents,
        node_rank=index,
        coordinator=(where.address, where.port + CONTROL_PORT_OFFSET),
        master_port=where.port,
        connect_timeout_s=left_s,
        job_id=options.job_id or found.job_id or "",
    )
    if index:
        return several_nodes.other_node(known, folder, slots)
    return several_nodes.first_node(known, folder, slots, anywhere=found.is_node_0)


def in_allocation(options: JobOptions, found: Scheduled, words: Sequence[str]) -> None:
    """Run this command on every node of a Slurm allocation of several; else return."""
    nodes = nodes_to_start(options, found)
    if not nodes:
        return
    say(f"{found.source}: srun starts a node on {', '.join(nodes)}")
    os.environ.setdefault(SECRET, os.urandom(32).hex())
    os.environ.setdefault("SLURM_OVERLAP", "1")  # the shell of `srun --pty` has the cores
    command = ["srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    command.append("--cpu-bind=none")  # a task has all ranks of its node
    command += [sys.executable, "-m", "hccl_py.launcher.main", *words]
    try:
        os.execvp("srun", command)
    except OSError as error:
        raise UsageError(
            f"{found.source}: cannot run srun, which starts the other nodes ({error.strerror}): "
            f"give {_NODE_OPTIONS}, or --standalone to use this machine alone"
        ) from error


def nodes_to_start(options: JobOptions, found: Scheduled) -> tuple[str, ...]:
    """Return the nodes on which srun starts this command; none: only here.

    Raises:
        UsageError: the allocation has fewer, or starting them needs an option.
    """
    if options.nodes_given and options.num_nodes == 1:
        return ()
    if found.options or (found.num_nodes or 1) > 1 and not found.nodes:
        size = f"has {found.num_nodes}" if found.num_nodes else "may have several"
        raise UsageError(
            f"{found.source}: the job {size} nodes, and no variable says how their processes meet: "
            f"give {found.options or _NODE_OPTIONS}, or --standalone to use this machine alone"
        )
    nodes = options.num_nodes if options.nodes_given else len(found.nodes)
    if len(found.nodes) < 2 or nodes < 2:
        return ()
    if nodes > len(found.nodes):
        raise UsageError(f"--nnodes {nodes}: the allocation has {len(found.nodes)} nodes")
    return found.nodes[:nodes]


def is_one_rank(found: Scheduled) -> bool:
    """Return whether this process is one of several on its node, with a rank each."""
    return found.task is Task.RANK and (found.local_world_size or 1) > 1


def place(options: JobOptions, found: Scheduled) -> tuple[int, int, tuple[Slot, ...]]:
    """Return the agent's index, the number of agents, and this agent's slots."""
    if is_one_rank(found):
        if options.ranks_per_node > 1:
            raise UsageError(
                f"{found.source} starts {found.local_world_size} processes on this node, and each "
                f"would start {options.ranks_per_node} ranks: start one process per node, or "
                "leave out --nproc-per-node"
            )
        numbers = found.rank, found.world_size, found.node_rank, found.local_rank
        if None in numbers:
            raise UsageError(
                f"{found.source} does not say which node this is: start one process per node, or "
                "the program itself, which needs no hccl-launch"
            )
        rank, world_size, node, local_rank = (int(number or 0) for number in numbers)
        return rank, world_size, (Slot(node, local_rank),)
    is_rank = found.task is Task.RANK
    node_rank = found.rank if is_rank and found.node_rank is None else found.node_rank
    num_nodes = found.world_size if is_rank and found.num_nodes is None else found.num_nodes
    if options.node_rank is not None and node_rank not in (None, options.node_rank):
        raise UsageError(
            f"--node-rank {options.node_rank}: {found.source} says that this is node {node_rank}"
        )
    if options.nodes_given and num_nodes not in (None, options.num_nodes):
        raise UsageError(f"--nnodes {options.num_nodes}: {found.source} has {num_nodes} nodes")
    index = node_rank if options.node_rank is None else options.node_rank
    if index is None:
        raise UsageError(f"{found.source} does not say which node this is: give {_NODE_OPTIONS}")
    count = num_nodes or options.num_nodes
    if not options.nodes_given and num_nodes is None:
        what = f"{found.source} does not say how many nodes there are"
        raise UsageError(f"{what}: give {_NODE_OPTIONS}")
    if index >= count:
        raise UsageError(f"{found.source} says that this is node {index} of {count}, from 0")
    return index, count, tuple(Slot(index, rank) for rank in range(options.ranks_per_node))


def given_place(options: JobOptions, found: Scheduled) -> Rendezvous | None:
    """Return node 0's address, if an option or a variable has it."""
    if options.coordinator is not None:
        port = options.coordinator[1] - CONTROL_PORT_OFFSET
        return Rendezvous(options.coordinator[0], port, "given")
    if found.master_addr:
        port = options.master_port or found.master_port or DEFAULT_MASTER_PORT
        return Rendezvous(found.master_addr, port, found.variables.get("master_addr", "given"))
    return None


def _found_place(options: JobOptions, found: Scheduled) -> Rendezvous:
    port = options.master_port or found.master_port
    try:
        where = found._replace(master_port=port)
        return find_rendezvous(where, os.environ, options.connect_timeout_s)
    except HcclError as error:
        raise UsageError(f"{error}; or give {_NODE_OPTIONS}") from error


def wait_until_known(name: str, timeout_s: float) -> float:
    """Wait until a pod's name resolves; return the remaining time, or end the process after it."""
    until_s = time.monotonic() + timeout_s
    what = f"{socket.gethostname()}: {name} does not resolve to an address"
    try:
        keep_trying(lambda: address_of(name), what, timeout_s)
    except TimeoutError as error:
        say(
            f"error: {error}: is there a headless Service with publishNotReadyAddresses, and has "
            "the pod of node 0 begun?"
        )
        sys.exit(MISSING_NODE)
    return max(0.0, until_s - time.monotonic())
