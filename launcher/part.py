"""Which part of a job this process runs: all of it, the head with node 0, or another node."""

import errno
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hccl_py.launcher.job.head import HeadSettings
from hccl_py.launcher.job.layout import Slot
from hccl_py.launcher.job.program import Program
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, Options, UsageError
from hccl_py.launcher.ports import free_port
from hccl_py.transport.network.interfaces import address_family, describe_target

_SECRET = "HCCL_SECRET"
_WORKER = str(Path(__file__).with_name("worker.py"))
# Their presence says that a scheduler started this process.
_SCHEDULER = ("SLURM_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "GROUP_RANK", "NODE_RANK")


def elastic(words: Sequence[str]) -> Callable[[], int]:
    """Return what runs a job whose size may change."""

    def body() -> int:
        from hccl_py.launcher.elastic import run

        return run.run(words)

    return body


def choose(options: Options, folder: Path) -> Callable[[], int]:
    """Return what runs this part; raise UsageError where it is not known or cannot be run."""
    if options.head is None:
        return _local(options, folder)
    if options.by_arrival:
        return _by_arrival(options, folder)
    if options.node_rank is None:
        raise UsageError(
            f"--node-rank: expected 0 to {options.num_nodes - 1}, for this is one of "
            f"{options.num_nodes} nodes that meet at {describe_target(options.head)}"
        )
    if options.node_rank:
        _resolve(options.head)
        return _other_node(options, folder)
    return _first_node(options, _listen(_resolve(options.head), options.head[1]), folder)


def _local(options: Options, folder: Path) -> Callable[[], int]:
    """All ranks are here, on emulated nodes where there are several."""
    nodes, ranks = options.num_nodes, options.ranks_per_node
    scheduler = next((name for name in os.environ if name.startswith(_SCHEDULER)), "")
    if nodes > 1 and scheduler:
        raise UsageError(
            f"{scheduler} is set, so this is one of {nodes} real nodes, but which one? Give "
            "--node-rank and --master-addr, or --standalone to emulate all nodes here"
        )
    if nodes > 1:
        each = "1 rank" if ranks == 1 else f"{ranks} ranks"
        _say(
            f"emulating {nodes} nodes of {each} on this machine (no --node-rank given); "
            "ranks of different nodes talk TCP"
        )
    # All ranks are on this machine, so one secret made here reaches them all. It travels in the
    # environment, which other users cannot read, never in an argument or a log.
    os.environ.setdefault(_SECRET, secrets.token_hex(32))
    if options.master_port:
        _check_free("127.0.0.1", options.master_port)
    program = _program(options, folder, range(nodes))
    settings = _settings(options, ("",), "")

    def body() -> int:
        from hccl_py.launcher.job import serve

        port = options.master_port or free_port("127.0.0.1")
        return serve.run(settings, [(0, program, "127.0.0.1", port)])

    return body


def _by_arrival(options: Options, folder: Path) -> Callable[[], int]:
    """The first process that listens at the endpoint has the head."""
    assert options.head is not None
    try:
        bound = _bind(_resolve(options.head), options.head[1])
        bound.listen()  # with SO_REUSEADDR two may bind, but only one listens
    except OSError:  # it is another host's, or another process was first
        return _other_node(options, folder)
    return _first_node(options, bound, folder)


def _first_node(options: Options, bound: socket.socket, folder: Path) -> Callable[[], int]:
    """The head is here, and the agent of node 0."""
    assert options.head is not None
    host = options.head[0]
    if not options.by_arrival:
        _check_free("0.0.0.0", options.master_port or DEFAULT_MASTER_PORT)
    program = _program(options, folder, range(1))
    settings = _settings(options, ("",) * options.num_nodes, describe_target(options.head))

    def body() -> int:
        from hccl_py.launcher.job import serve

        listener = bound, os.environ.get(_SECRET, "")
        port = settings.master_port or free_port()
        return serve.run(settings, [(0, program, host, port)], listener)

    return body


def _other_node(options: Options, folder: Path) -> Callable[[], int]:
    """The head is on another host."""
    assert options.head is not None
    program = _program(options, folder, [options.node_rank or 0])
    target = options.head

    def body() -> int:
        from hccl_py.launcher.job import join

        head = join.HeadAddress(
            index=options.node_rank,
            num_agents=options.num_nodes,
            name=target,
            secret=os.environ.get(_SECRET, ""),
            connect_timeout_s=options.connect_timeout_s,
        )
        return join.run(program, head)

    return body


def _program(options: Options, folder: Path, nodes: Sequence[int]) -> Program:
    ranks_here = len(nodes) * options.ranks_per_node
    cores = len(os.sched_getaffinity(0))
    environment = {"OMP_NUM_THREADS": str(max(1, cores // ranks_here)), **os.environ}
    command = options.program
    if options.is_python:
        command = (sys.executable, _WORKER, *command)
    return Program(
        command=command,
        environment=environment,
        slots=tuple(Slot(node, rank) for node in nodes for rank in range(options.ranks_per_node)),
        emulates_nodes=len(nodes) > 1,
        stop_s=options.stop_s,
        folder=folder,
    )


def _settings(options: Options, hosts: tuple[str, ...], address: str) -> HeadSettings:
    anywhere = options.head is None or options.by_arrival
    return HeadSettings(
        hosts=hosts,
        address=address,
        connect_timeout_s=options.connect_timeout_s,
        stop_s=options.stop_s,
        job_id=options.job_id or f"job-{secrets.token_hex(4)}",
        max_restarts=options.max_restarts,
        master_addr="" if options.head is None else options.head[0],
        master_port=options.master_port or (0 if anywhere else DEFAULT_MASTER_PORT),
    )


def _resolve(target: tuple[str, int]) -> str:
    try:
        found = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"--master-addr: {target[0]} does not resolve to an address ({error.strerror}): "
            "give a name that all nodes know, or an address"
        ) from error
    return str(found[0][4][0])


def _listen(address: str, port: int) -> socket.socket:
    """Bind where the others dial: the address itself, or all where it is not this machine's."""
    try:
        return _bind(address, port)
    except OSError as error:
        problem = error
        if error.errno == errno.EADDRNOTAVAIL:  # translated on the way here, as to a pod or a VM
            with suppress(OSError):
                return _bind("::" if ":" in address else "0.0.0.0", port)
    raise UsageError(
        f"cannot listen at {describe_target((address, port))}, one above --master-port: "
        f"{problem.strerror}; choose another --master-port"
    )


def _bind(address: str, port: int) -> socket.socket:
    bound = socket.socket(address_family(address))
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def _check_free(address: str, port: int) -> None:
    """Say at once, and not by rank 0 when all have started, that the store's port is taken."""
    try:
        _bind(address, port).close()
    except OSError as error:
        where = describe_target((address, port))
        raise UsageError(
            f"rank 0's store cannot listen at {where}: {error.strerror}; "
            "choose another --master-port"
        ) from error


def _say(text: str) -> None:
    print(f"hccl-launch: {text}", file=sys.stderr, flush=True)
