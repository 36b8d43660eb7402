"""The store of a stand-alone communicator, from the environment that launchers set.

In a program with torch it is torch's TCPStore at MASTER_ADDR:MASTER_PORT: the launcher's, or one
that rank 0 starts, as `init_process_group` does. In a program without torch, rank 0 serves the
store of a unique id there until all ranks are connected.
"""

import os
import socket
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

from hccl_py.membership.lasting_store import lasting, persistently
from hccl_py.membership.lives import life_at
from hccl_py.membership.unique_id import (
    UniqueId,
    id_at,
    report_by_another_process,
    store_of_unique_id,
)
from hccl_py.schedulers.adopt import adopt
from hccl_py.transport.arguments import whole_number, wrong
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.errors import BootstrapError, HcclError, InvalidArgumentError
from hccl_py.transport.network.interfaces import is_loopback
from hccl_py.transport.network.secret import sealing_key
from hccl_py.transport.network.system_calls import (
    descriptor_limits,
    is_no_descriptor,
    require_system_calls,
)
from hccl_py.transport.threads import call_interruptibly, is_of_signal_handler

# Also keyed by process id: a forked child must not use its parent's connection.
_stores: dict[tuple[int, str, int], Any] = {}
_VARIABLES = "MASTER_ADDR:MASTER_PORT"
_NO_RANK = -1
_MIN_DESCRIPTORS = 4
_MOST_REPORTED = 64
_REPORT_S = 5.0
"""How long a rank that does not know its number tries to report the reason."""


def checked_rank_and_size(
    rank: Any, world_size: Any, store: Any, name: str, timeout_s: Any
) -> tuple[int, int]:
    """Return `rank_and_size`; report invalid values to the ranks that wait at `store`.

    The report takes a few seconds at most; InvalidArgumentError follows.
    """
    try:
        found = rank_and_size(rank, world_size)
        if found[1] < 1 or (found[1] == 1 and found[0] != 0):  # there are no other ranks
            raise InvalidArgumentError(f"rank {found[0]} is not in 0..{found[1] - 1} (world_size)")
        return found
    except InvalidArgumentError as error:
        limit_s = timeout_s if isinstance(timeout_s, int | float) and timeout_s > 0 else _REPORT_S
        problem = f"a rank (pid {os.getpid()} on {socket.gethostname()}): {error}"
        report(problem, store, name, min(limit_s, _REPORT_S))
        raise


def report(
    problem: str, store: Any = None, name: str = "default", timeout_s: float = _REPORT_S
) -> None:
    """Report a problem of a rank that cannot connect, at the store where the others wait.

    If no process serves the store, this may be rank 0, which then serves it for the report.
    """
    size = os.environ.get("WORLD_SIZE", "")
    num_ranks = min(int(size), _MOST_REPORTED) if size.isdecimal() else _MOST_REPORTED
    is_reported = False
    for rank in (_NO_RANK, 0):
        with (
            suppress(HcclError, OSError),
            rendezvous_store(store, rank, 0, name, timeout_s / 2, problem) as found,
            SharedFailure(SealedStore(found, sealing_key()), rank, num_ranks).sharing(),
        ):
            is_reported = True
            raise BootstrapError(problem)
        if is_reported or _is_hosted() or _is_served_by_its_maker(store):
            return


def rank_and_size(rank: Any = None, world_size: Any = None) -> tuple[int, int]:
    """Return both as ints, from the launcher's variables if they are not given."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("rank and world_size: expected both or neither")
    if rank is None:
        adopt()  # srun and mpirun do not set RANK
        return _number("RANK"), _number("WORLD_SIZE")
    small = "a whole number below 2^31", range(-(1 << 31), 1 << 31)
    return whole_number("rank", rank, *small), whole_number("world_size", world_size, *small)


def rendezvous_store(
    store: Any, rank: int, world_size: int, name: str, timeout_s: float, problem: str = ""
) -> AbstractContextManager[Any]:
    """Open the store through which the ranks of a communicator find each other.

    `store` is a store, the bytes of a unique id, or None for the environment's; `timeout_s` covers
    everything. With a `problem`, the store is opened only to report it.
    """
    is_id = store is None or isinstance(store, bytes | bytearray | memoryview)
    if (
        rank in range(world_size)
        and not is_id
        and not (hasattr(store, "set") and hasattr(store, "get"))
    ):
        raise wrong("store", "a unique id, or an object with set and get", store)
    if store is None and world_size != 1:
        _require_descriptors(rank, name)
        if _is_hosted() or sys.modules.get("torch"):
            host = store_from_environment(rank, name, timeout_s)
            return life_at(host, rank, world_size, timeout_s)
        store = id_from_environment(rank, name)
    if isinstance(store, bytes | bytearray | memoryview):
        return store_of_unique_id(store, rank, world_size, timeout_s, problem)
    return nullcontext(lasting(store))


def _require_descriptors(rank: int, name: str) -> None:
    """Have another process report that this one has no descriptor left to resolve a name."""
    taken: list[int] = []
    try:
        while len(taken) < _MIN_DESCRIPTORS:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if is_no_descriptor(error):
            text = f"no descriptor is left: ulimit -n is {descriptor_limits()[0]}; raise it there"
            report_by_another_process(f"rank {rank} on {socket.gethostname()}: {text}", name=name)
            raise BootstrapError(f"rank {rank}: {text}") from error
    finally:
        for descriptor in taken:
            os.close(descriptor)


def id_from_environment(rank: int, name: str) -> UniqueId:
    """Make the id of the communicators of this name, which rank 0 serves at MASTER_PORT."""
    host, port = _variable("MASTER_ADDR"), _port()
    try:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise BootstrapError(f"MASTER_ADDR: expected a host, got {host!r}: {error}") from None
    address = str(found[0])
    if rank == 0 and not (is_loopback(address) and host in ("localhost", address)):
        # On rank 0's own machine its name, or a service's address, may resolve to another address.
        address = "::" if family is socket.AF_INET6 else "0.0.0.0"
    # Without the host, which may be localhost on rank 0.
    return id_at((address, port), f"{_VARIABLES}, no rank with torch", f"{port} {name}")


def store_from_environment(rank: int, name: str, timeout_s: float) -> Any:
    """Join the store at MASTER_ADDR:MASTER_PORT, under a prefix per name.

    Rank 0 hosts the store unless a launcher does.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    address = _variable("MASTER_ADDR")
    port = _port()
    hosted = _is_hosted()
    key = (os.getpid(), address, port)
    if not _answers(_stores.get(key)):
        try:
            _stores[key] = _open_store(address, port, rank == 0 and not hosted, timeout_s)
        except (RuntimeError, OSError) as error:
            if is_of_signal_handler(error):
                raise
            require_system_calls()  # torch does not say which call a sandbox forbids
            raise BootstrapError(
                f"rank {rank}: no store at {address}:{port} ({_VARIABLES}); it is there if rank 0 "
                f"imports torch too before its first Communicator: {error}"
            ) from error
    # A launcher's store keeps the keys of a failed attempt. A store of rank 0 does not, and the
    # restart count may differ between nodes.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if hosted else "0"
    return PrefixStore(f"hccl/{attempt}/{name}", _stores[key])


def _open_store(address: str, port: int, is_master: bool, timeout_s: float) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    def open_store() -> Any:
        return TCPStore(
            host_name=address,
            port=port,
            is_master=is_master,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,  # init_process_group may share the port in this process
        )

    try:
        server = (
            None if is_master else (address, port)
        )  # otherwise a port in use would not be a reset
        return persistently(lambda: call_interruptibly(open_store), server)
    except (RuntimeError, OSError) as error:
        if not is_master or is_of_signal_handler(error):
            raise
        with suppress(RuntimeError, OSError):  # another rank that claims rank 0 may serve it
            return _open_store(address, port, False, min(timeout_s, _REPORT_S / 2))
        raise


def _answers(store: Any) -> bool:
    """Return whether rank 0 still serves a store of an earlier communicator."""
    try:
        return store is not None and not store.check(["hccl/nothing"])
    except RuntimeError as error:
        if is_of_signal_handler(error):
            raise
        return False


def _is_served_by_its_maker(store: Any) -> bool:
    """Return whether it is a unique id whose store no rank serves; False for damaged ones."""
    with suppress(InvalidArgumentError):
        return isinstance(store, bytes) and not UniqueId(store).address.comes_later
    return False


def _is_hosted() -> bool:
    """Return whether the launcher serves torch's store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _variable(name: str) -> str:
    text = os.environ.get(name)
    if not text:
        raise InvalidArgumentError(
            f"{name} is not set: start the program with hccl-launch, torchrun, srun or mpirun, or "
            "pass store, rank and world_size"
        )
    return text


def _port() -> int:
    port = _number("MASTER_PORT")
    if not 0 <= port <= 65535:  # 0: torch's store of one rank takes any free port
        raise InvalidArgumentError(f"MASTER_PORT: expected a port up to 65535, got {port}")
    return port


def _number(name: str) -> int:
    text = _variable(name)
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"{name}: expected a number, got {text!r}") from None
