"""Horovod's calls on numpy arrays, and on whatever numpy makes an array of.

Frameworks that have no module of their own here use these: their arrays go in, numpy's come out.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.horovod.calls import Calls, waiting
from hccl_py.horovod.collectives.arrays import ARRAYS
from hccl_py.horovod.collectives.move import Exchange
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set

Given = npt.ArrayLike
Made = npt.NDArray[Any]
_calls = Calls[Given, Made](ARRAYS)

allreduce_async = _calls.allreduce_async
grouped_allreduce_async = _calls.grouped_allreduce_async
allgather_async = _calls.allgather_async
broadcast_async = _calls.broadcast_async
reducescatter_async = _calls.reducescatter_async
grouped_allgather_async = _calls.grouped_allgather_async
grouped_reducescatter_async = _calls.grouped_reducescatter_async

allreduce = waiting(
    "allreduce", allreduce_async, "Return the average over all ranks, or what `op` says."
)
grouped_allreduce = waiting(
    "grouped_allreduce",
    grouped_allreduce_async,
    "Reduce all arrays as `allreduce` does, small ones in one call.",
)
allgather = waiting(
    "allgather",
    allgather_async,
    "Return all ranks' arrays, joined along the first dimension, which may differ.",
)
grouped_allgather = waiting(
    "grouped_allgather",
    grouped_allgather_async,
    "Gather each array of a list as `allgather` does.",
)
broadcast = waiting(
    "broadcast",
    broadcast_async,
    "Return the array of rank `root_rank`; all ranks bring one of its shape and type.",
)
reducescatter = waiting(
    "reducescatter",
    reducescatter_async,
    "Reduce over all ranks, and return this rank's share of the first dimension.",
)
grouped_reducescatter = waiting(
    "grouped_reducescatter",
    grouped_reducescatter_async,
    "Reduce and scatter each array of a list as `reducescatter` does.",
)


def alltoall_async(
    tensor: Given,
    splits: Given | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Made, npt.NDArray[np.int64]]]:
    """Start `alltoall`; the result has the received splits in any case."""
    started = Exchange(process_set).start(ARRAYS, [np.asarray(tensor)], splits)
    return started.then(lambda made: (made[0][0], made[1]))


def alltoall(
    tensor: Given,
    splits: Given | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows, and return the rows that came from all ranks.

    With `splits`, how many rows each rank gets, also return how many came from each.
    """
    output, received = alltoall_async(tensor, splits, name, process_set).wait()
    return output if splits is None else (output, received)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called it."""
    with internal_errors():
        process_set.communicator.barrier()
