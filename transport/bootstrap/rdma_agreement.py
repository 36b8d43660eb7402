"""HCCL_TRANSPORT=auto: RDMA between nodes only if every rank can use its device.

A rank opens the device and makes its queue pairs before it agrees. If that fails on any rank, all
ranks use TCP. Nothing is connected yet.
"""

from collections.abc import Callable

from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.deadline import Deadline

_MAX_BYTES = 1024
_AGREED = "rdma"


def first_problem(
    store: SealedStore,
    rank: int,
    world_size: int,
    problem: str,
    deadline: Deadline,
    poll: Callable[[], None],
) -> str:
    """Report to all ranks why this one cannot use RDMA, and return the first problem.

    All ranks call it, in O(world_size) store operations.

    Args:
        problem: of this rank; empty: it has none.
        poll: called every second; may raise to end the wait.

    Raises:
        BootstrapError: a rank did not report in time.
    """
    store.set(f"{_AGREED}/{rank}", problem.encode()[:_MAX_BYTES])
    if rank == 0:
        keys = [f"{_AGREED}/{one}" for one in range(world_size)]
        store.wait(keys, 0, world_size, deadline, "a rank did not open its RDMA device", poll)
        problems = (store.get(key, f"what {key} says", _MAX_BYTES) for key in keys)
        store.set(_AGREED, next(filter(None, problems), b""))
    else:
        otherwise = "rank 0 did not say whether all ranks can use RDMA; look at its log"
        store.wait([_AGREED], rank, world_size, deadline, otherwise, poll)
    agreed = store.get(_AGREED, "what rank 0 says of RDMA", _MAX_BYTES)
    return agreed.decode(errors="replace")
