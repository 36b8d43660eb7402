"""One of several nodes that run hccl-launch and connect to node 0."""

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hccl_py.launcher.exit_codes import TRY_AGAIN, UsageError
from hccl_py.launcher.job.layout import Slot
from hccl_py.launcher.machine.lookups import address_of
from hccl_py.launcher.machine.open_files import allow_connections
from hccl_py.launcher.options import (
    CONTROL_PORT_OFFSET,
    DEFAULT_MASTER_PORT,
    MAX_PORT,
    JobOptions,
)
from hccl_py.launcher.parts.settings import (
    bind,
    check_free,
    program_of,
    settings_of,
    slots_of,
)
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.secret import SECRET


def node_of(options: JobOptions) -> int:
    """Return the number of this node; no process is node 0 by default."""
    if options.node_rank is None:
        assert options.coordinator is not None
        raise UsageError(
            f"--node-rank: expected 0 to {options.num_nodes - 1}, for this is one of "
            f"{options.num_nodes} nodes that meet at {describe_target(options.coordinator)}"
        )
    return options.node_rank


def by_arrival(options: JobOptions, folder: Path) -> Callable[[], int]:
    """Return a function that runs this node; the process at the endpoint has the coordinator."""
    assert options.coordinator is not None
    address, port = resolve(options.coordinator), options.coordinator[1]
    until_s = time.monotonic() + options.connect_timeout_s
    if port == 0:
        try:
            bind(address, port).close()
        except OSError as error:
            where = describe_target(options.coordinator)
            raise UsageError(
                f"--rdzv-endpoint: expected an address of this machine, got {where}: "
                f"{error.strerror}"
            ) from error

    def body() -> int:
        while True:
            slots = slots_of(options, [0])
            try:
                bound = bind(address, port)
                bound.listen()  # with SO_REUSEADDR two may bind, but only one listens
            except OSError as error:  # it is another host's address, or another process was first
                was_taken = error.errno == errno.EADDRINUSE
            else:
                return first_node(options, folder, slots, bound)()
            # The listening process may belong to an earlier job that is ending.
            left = options._replace(connect_timeout_s=max(1.0, until_s - time.monotonic()))
            code = other_node(left, folder, slots, address, gives_way=was_taken)()
            if code != TRY_AGAIN:
                return code

    return body


def first_node(
    options: JobOptions,
    folder: Path,
    slots: tuple[Slot, ...],
    bound: socket.socket | None = None,
    anywhere: bool = False,
) -> Callable[[], int]:
    """Return a function that runs the coordinator and node 0's agent.

    The coordinator listens at `bound`, else at the options' address, or at all addresses if the
    others may use another one.
    """
    assert options.coordinator is not None
    host = options.coordinator[0]
    allow_connections(options.num_nodes)
    if bound is None:
        address = resolve(options.coordinator)
        if anywhere:
            address = "::" if ":" in address else "0.0.0.0"
        bound = _listen(address, options.coordinator[1])
        check_free("0.0.0.0", options.master_port or DEFAULT_MASTER_PORT)
    program = program_of(options, folder, slots)
    settings = settings_of(options, ("",) * options.num_nodes, describe_target(options.coordinator))

    def body() -> int:
        from hccl_py.launcher.job import serve

        assert bound is not None
        listener = bound, os.environ.get(SECRET, "")
        port = settings.master_port or free_port()
        return serve.run(settings, [(0, program, host, port)], listener)

    return body


def other_node(
    options: JobOptions,
    folder: Path,
    slots: tuple[Slot, ...],
    address: str = "",
    gives_way: bool = False,
) -> Callable[[], int]:
    """Return a function that runs a node with a remote coordinator, at `address` if known."""
    assert options.coordinator is not None
    address = address or resolve(options.coordinator)
    program = program_of(options, folder, slots)
    target = options.coordinator

    def body() -> int:
        from hccl_py.launcher.job import join

        coordinator = join.CoordinatorAddress(
            agent_index=options.node_rank,
            num_agents=options.num_nodes,
            name=target,
            address=address,
            secret=os.environ.get(SECRET, ""),
            connect_timeout_s=options.connect_timeout_s,
            gives_way=gives_way,
        )
        return join.run(program, coordinator)

    return body


def resolve(target: tuple[str, int]) -> str:
    """Return the address of node 0 or of the endpoint; UsageError: it has none."""
    if target[1] > MAX_PORT:
        raise UsageError(
            f"--master-port: expected 1 to {MAX_PORT - CONTROL_PORT_OFFSET} for several nodes, as "
            f"hccl-launch takes the port above; got {target[1] - CONTROL_PORT_OFFSET}"
        )
    try:
        return address_of(target[0])
    except OSError as error:
        raise UsageError(
            f"{target[0]} does not resolve to an address ({error}): "
            "give a name that all nodes know, or an address"
        ) from error


def _listen(address: str, port: int) -> socket.socket:
    """Bind the address that others dial, or all addresses if it is not this machine's."""
    try:
        return bind(address, port)
    except OSError as error:
        problem = error
        if error.errno == errno.EADDRNOTAVAIL:  # a translated address, as of a pod or a VM
            with suppress(OSError):
                return bind("::" if ":" in address else "0.0.0.0", port)
    raise UsageError(
        f"cannot listen at {describe_target((address, port))}, one above --master-port: "
        f"{problem.strerror}; choose another --master-port"
    )
