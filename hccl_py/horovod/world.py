"""The job: `init`, `shutdown`, and the rank of this process."""

import os
from collections.abc import Sequence

from hccl_py.communicator import Communicator
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    close_all,
    global_process_set,
    open_global,
)
from hccl_py.membership.environment import rank_and_size
from hccl_py.schedulers.adopt import adopt
from hccl_py.transport.errors import InvalidArgumentError


def init(comm: None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job of hccl-launch, mpirun or srun; without a launcher, be the only rank.

    A second call does nothing.

    Args:
        comm: not used; Horovod's MPI communicators and lists of ranks are rejected.
        process_sets: sets to add. "dynamic" is accepted: sets can always be added later.

    Raises:
        InvalidArgumentError: the environment gives this process no valid rank.
        BootstrapError: not all ranks arrived, or they could not connect.
    """
    if comm is not None and comm != []:
        raise InvalidArgumentError(
            f"comm: expected None, got {comm!r}; use a ProcessSet for some of the ranks"
        )
    if is_initialized():
        return
    rank, world_size = _own_rank()
    open_global(Communicator(None, rank, world_size, name="horovod"))
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


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
    """Return whether all nodes have the same number of ranks."""
    return len({len(node) for node in global_process_set.communicator.nodes}) == 1


def _node() -> Sequence[int]:
    communicator = global_process_set.communicator
    return next(node for node in communicator.nodes if communicator.rank in node)


def _column() -> list[int]:
    """Return the ranks of this local rank, one of each node that has it."""
    local = local_rank()
    return [node[local] for node in global_process_set.communicator.nodes if len(node) > local]


def _own_rank() -> tuple[int, int]:
    adopt()
    if os.environ.get("RANK"):
        return rank_and_size()
    if int(os.environ.get("HOROVOD_SIZE") or 1) > 1:
        raise InvalidArgumentError(
            "HOROVOD_SIZE is set and RANK is not: horovodrun cannot start ranks of hccl-py; use "
            "hccl-launch or mpirun"
        )
    return 0, 1
