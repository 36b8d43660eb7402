"""The layout of a job: the location, command and environment of each rank."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.placement.binding import Bind
from hccl_py.launcher.placement.topology import framework_variables

FOR_FRAMEWORKS = {
    "replace_gloo": ("HCCL_REPLACE", "gloo"),
    "habana_shim": ("HCCL_HABANA_SHIM", "1"),
}
"""The ranks' variable of each option; `torch_backend/replace_gloo.py` and `worker.py` read it."""


class Slot(NamedTuple):
    """The place of a rank: its node in the job, and its number on that node."""

    node: int
    local_rank: int


class Hello(NamedTuple):
    """An agent's first message.

    Attributes:
        host, pid: of the agent, for messages.
        slots: for its ranks, in order.
        address: this host's address for the other hosts.
        port: a free port of this host, for rank 0's store.
    """

    host: str
    pid: int
    slots: tuple[Slot, ...]
    address: str
    port: int


class Attempt(NamedTuple):
    """One start of all ranks, as the coordinator sends it to an agent.

    Attributes:
        number: 0, and one more after every restart.
        first_rank: of the agent's ranks, which are consecutive.
        slots: of the agent's ranks.
        world_size: ranks of the job.
        node_sizes: ranks on each node.
        master_addr, master_port: address of rank 0's store.
        job_id: the same on all nodes.
        max_restarts: of the job.
        sample_s: seconds between two samples of a rank's progress; 0: no samples.
    """

    number: int
    first_rank: int
    slots: tuple[Slot, ...]
    world_size: int
    node_sizes: tuple[int, ...]
    master_addr: str
    master_port: int
    job_id: str
    max_restarts: int
    sample_s: float = 0.0


def node_sizes(slots: Sequence[Slot]) -> tuple[int, ...]:
    """Count the ranks of each node.

    Raises:
        ValueError: a slot is taken twice, or a node or local rank is missing.
    """
    twice = [slot for slot, times in Counter(slots).items() if times > 1]
    if twice:
        raise ValueError(
            f"local rank {twice[0].local_rank} of node {twice[0].node} was started twice"
        )
    sizes, there = Counter(slot.node for slot in slots), set(slots)
    missing = [
        f"local rank {local} of node {node}"
        for node in range(max(sizes) + 1)
        for local in range(max(1, sizes[node]))
        if Slot(node, local) not in there
    ]
    if missing:
        raise ValueError(f"no process started {missing[0]}")
    return tuple(sizes[node] for node in range(len(sizes)))


def rank_environment(attempt: Attempt, index: int) -> dict[str, str]:
    """Return the environment of an agent's `index`-th rank, as under torchrun."""
    rank, slot, nodes = attempt.first_rank + index, attempt.slots[index], len(attempt.node_sizes)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(slot.local_rank),
        "WORLD_SIZE": str(attempt.world_size),
        "LOCAL_WORLD_SIZE": str(attempt.node_sizes[slot.node]),
        "NODE_RANK": str(slot.node),
        "GROUP_RANK": str(slot.node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(attempt.world_size),
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": str(attempt.master_port),
        # An agent's store would keep the keys of a failed attempt.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": attempt.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt.number),
        "TORCHELASTIC_MAX_RESTARTS": str(attempt.max_restarts),
    }


class JobSettings(NamedTuple):
    """The coordinator's settings of a job, known before any agent joins.

    Attributes:
        hosts: one per agent; empty if a host is not known yet.
        address: the coordinator's address for other hosts, for messages.
        connect_timeout_s: how long to wait for all agents.
        stop_s: time between SIGTERM and SIGKILL of a rank. job_id: for the ranks; kept by restarts.
        master_addr, master_port: rank 0's store; empty and 0: the first agent's.
        min_ranks: how many ranks must remain when others fail; 0: all.
        stall_s: time without progress after which a rank is reported; 0: never.
        aliases: the `hosts` whose names are not valid on other hosts.
        only_checks: the job is a full preflight, without ranks.
    """

    hosts: tuple[str, ...]
    address: str
    connect_timeout_s: float
    stop_s: float
    job_id: str
    max_restarts: int = 0
    min_ranks: int = 0
    master_addr: str = ""
    master_port: int = 0
    only_checks: bool = False
    stall_s: float = 0.0
    aliases: frozenset[str] = frozenset()


WORKER = str(Path(__file__).parents[1] / "worker.py")
"""The start of a Python rank's command."""


class RankProgram(NamedTuple):
    """The program to run on this host.

    Attributes:
        command: of every rank.
        environment: of every rank, without its own variables.
        slots: for the ranks, in order.
        emulates_nodes: whether ranks of several nodes run on this host.
        stop_s: between SIGTERM and SIGKILL.
        folder: for records of exceptions; owner-only.
        bind: which cores each rank gets.
        output: destinations of the ranks' lines.
        is_alone: the job is a single rank, which owns this terminal.
        has_stdin: the standard input of this process is the user's, for rank 0.
        has_user: rank 0 may prompt the user: its prompts are shown at once.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    slots: tuple[Slot, ...]
    emulates_nodes: bool
    stop_s: float
    folder: Path
    bind: Bind
    output: OutputOptions
    is_alone: bool = False
    has_stdin: bool = True
    has_user: bool = False


def rank_command(words: Sequence[str], is_python: bool) -> tuple[str, ...]:
    """Return the command of a rank for the user's program, script, or `-m` and module."""
    return (sys.executable, WORKER, *words) if is_python else tuple(words)


def rank_variables(program: RankProgram, attempt: Attempt, index: int) -> dict[str, str]:
    """Return the variables of an agent's `index`-th rank, besides the program's environment."""
    own = rank_environment(attempt, index)
    if program.emulates_nodes:
        own["HCCL_NODE_ID"] = f"emulated-node-{attempt.slots[index].node}"
    if "PYTHONUNBUFFERED" not in program.environment:
        # Otherwise Python would buffer lines to a pipe.
        own["PYTHONUNBUFFERED"] = "1"
    for name, _ in FOR_FRAMEWORKS.values():
        if name in program.environment:
            own[name] = program.environment[name]  # for --dry-run to show
    return {**own, **framework_variables(program.environment)}
