"""Horovod's calls on numpy arrays, and on whatever numpy makes an array of.

Frameworks that have no module of their own here use these: their arrays go in, numpy's come out.
The signatures are Horovod's; `name` is accepted for its sake.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.horovod.arrays import NumpyArrays
from hccl_py.horovod.collectives import (
    start_broadcast,
    start_exchange,
    start_gather,
    start_reduce,
    start_reduce_scatter,
)
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import reduction

Given = npt.ArrayLike
Made = npt.NDArray[Any]
_NUMPY = NumpyArrays()


def _first(made: Sequence[Made]) -> Made:
    return made[0]


def allreduce_async(
    tensor: Given,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Made]:
    """Start `allreduce`."""
    given = [tensor]
    return grouped_allreduce_async(
        given, average, name, op, prescale_factor, postscale_factor, process_set
    ).then(_first)


def allreduce(
    tensor: Given,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Made:
    """Return the average over all ranks, or what `op` says."""
    return allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async(
    tensors: Sequence[Given],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Made]]:
    """Start `grouped_allreduce`."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    given = [_NUMPY.ready(tensor) for tensor in tensors]
    outputs = [np.empty_like(each) for each in given]
    return start_reduce(_NUMPY, given, outputs, chosen, process_set)


def grouped_allreduce(
    tensors: Sequence[Given],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Made]:
    """Reduce all arrays as `allreduce` does, small ones in one call."""
    return grouped_allreduce_async(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def allgather_async(
    tensor: Given, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Made]:
    """Start `allgather`."""
    return start_gather(_NUMPY, [_NUMPY.ready(tensor)], process_set).then(_first)


def allgather(
    tensor: Given, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Made:
    """Return all ranks' arrays, joined along the first dimension, which may differ."""
    return allgather_async(tensor, name, process_set).wait()


def grouped_allgather(
    tensors: Sequence[Given],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Made]:
    """Gather each array of a list as `allgather` does."""
    return start_gather(_NUMPY, [_NUMPY.ready(each) for each in tensors], process_set).wait()


def broadcast_async(
    tensor: Given,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Made]:
    """Start `broadcast`."""
    given = _NUMPY.ready(tensor)
    return start_broadcast(_NUMPY, given, np.empty_like(given), root_rank, process_set)


def broadcast(
    tensor: Given,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Made:
    """Return the array of rank `root_rank`; all ranks bring one of its shape and type."""
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def alltoall_async(
    tensor: Given,
    splits: Given | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Made, npt.NDArray[np.int64]]]:
    """Start `alltoall`; the result has the received splits in any case."""
    return start_exchange(_NUMPY, _NUMPY.ready(tensor), splits, process_set)


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


def reducescatter_async(
    tensor: Given,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Made]:
    """Start `reducescatter`."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    given = [_NUMPY.ready(tensor)]
    return start_reduce_scatter(_NUMPY, given, chosen, process_set).then(_first)


def reducescatter(
    tensor: Given,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Made:
    """Reduce over all ranks, and return this rank's share of the first dimension."""
    return reducescatter_async(
        tensor, name, op, process_set, prescale_factor, postscale_factor
    ).wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called it."""
    with internal_errors():
        process_set.communicator.barrier()
