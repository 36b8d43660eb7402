"""The job: `init`, `shutdown`, and which of its ranks this process is."""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from hccl_py.communicator import Communicator
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    close_all,
    global_process_set,
    open_global,
)
from hccl_py.membership.environment import rank_and_size
from hccl_py.membership.unique_id import agreed_id
from hccl_py.schedulers.adopt import adopt
from hccl_py.transport.errors import InvalidArgumentError

_NAME = "horovod"


def init(comm: None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job of hccl-launch, mpirun or srun; without one be its only rank.

    A second call does nothing. No torch is imported where ranks can meet without it.

    Args:
        comm: not used; Horovod's MPI communicators and lists of ranks are rejected.
        process_sets: to be added at once. "dynamic" is accepted: sets can always be added.

    Raises:
        InvalidArgumentError: the environment makes no rank of this process.
        BootstrapError: not all ranks came, or they could not be connected.
    """
    start(comm, process_sets, _connect_without_torch)


def start(
    comm: object,
    process_sets: Sequence[ProcessSet] | str | None,
    connect: Callable[[int, int], Communicator],
) -> None:
    """Do what `init` says; `connect` makes the communicator of several ranks."""
    if comm is not None and comm != []:
        raise InvalidArgumentError(
            f"comm: expected None, got {comm!r}; for some of the ranks make a ProcessSet"
        )
    if is_initialized():
        return
    rank, world_size = _place()
    alone = world_size == 1
    open_global(Communicator(None, 0, 1) if alone else connect(rank, world_size))
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


def connect_by_torch(rank: int, world_size: int) -> Communicator:
    """Meet at torch's store of MASTER_ADDR:MASTER_PORT, which torch.distributed can use too."""
    return Communicator(None, rank, world_size, name=_NAME)


def shutdown() -> None:
    """Leave the job. Idempotent."""
    close_all()


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` was not."""
    return global_process_set._communicator is not None


def size() -> int:
    """Return the number of ranks."""
    return global_process_set.communicator.world_size


def rank() -> int:
    """Return the rank of this process."""
    return global_process_set.communicator.rank


def local_size() -> int:
    """Return the number of ranks on this node."""
    return len(_node())


def local_rank() -> int:
    """Return the number of this process among the ranks of its node."""
    return _node().index(rank())


def cross_size() -> int:
    """Return how many nodes have a rank of this local rank."""
    return len(_column())


def cross_rank() -> int:
    """Return the number of this node among those that have a rank of this local rank."""
    return _column().index(rank())


def is_homogeneous() -> bool:
    """Return whether all nodes have as many ranks."""
    return len({len(node) for node in global_process_set.communicator.nodes}) == 1


def _node() -> Sequence[int]:
    communicator = global_process_set.communicator
    return next(node for node in communicator.nodes if communicator.rank in node)


def _column() -> list[int]:
    """Return the ranks of this local rank, one of each node that has it."""
    local = local_rank()
    return [node[local] for node in global_process_set.communicator.nodes if len(node) > local]


def _place() -> tuple[int, int]:
    adopt()
    if os.environ.get("RANK"):
        return rank_and_size()
    if int(os.environ.get("HOROVOD_SIZE") or 1) > 1:
        raise InvalidArgumentError(
            "HOROVOD_SIZE is set and RANK is not: horovodrun cannot start ranks of hccl-py; use "
            "hccl-launch or mpirun"
        )
    return 0, 1


def _connect_without_torch(rank: int, world_size: int) -> Communicator:
    """Meet at MASTER_ADDR:MASTER_PORT, which rank 0 serves, if every rank knows one number for it.

    torchrun serves a store there itself. A name may be another address on rank 0's own host.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = _number_of(host)
    if hosted or not port or (address is None and find_spec("torch")):
        return connect_by_torch(rank, world_size)
    unique_id = agreed_id(f"{address or socket.gethostbyname(host)}:{port}")
    return Communicator(unique_id, rank, world_size, name=_NAME)


def _number_of(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        return None
