"""Horovod's signatures: the only place with each argument, its default and its position.

A function of this module is a row of the table: it has the arguments of a call after the tensors,
as in `horovod.torch`, and returns the call that they describe. `calls.Calls` makes a library's
functions from the rows. `ORDER_IN_TENSORFLOW` has the order of `horovod.tensorflow`.

`name` is accepted and ignored: ranks match calls by their order.
"""

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from hccl_py.horovod.collectives.collective import Collective
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.collectives.rows import AllToAll, Broadcast, Gather, ReduceScatter
from hccl_py.horovod.compression import Compressor
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, reduction


class DescribedCall(NamedTuple):
    """A call with all its arguments but the tensors.

    Attributes:
        collective: what is called.
        compression: the element type that the tensors are sent in.
        splits: of alltoall, the number of rows for each rank, as the program gave them.
    """

    collective: Collective
    compression: type[Compressor] = Compressor
    splits: Any = None


Row = Callable[..., DescribedCall]


def allreduce(
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> DescribedCall:
    """Return the average over all ranks, or the reduction that `op` names."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return DescribedCall(Reduce(chosen, process_set))


def reducescatter(
    name: str | None = None,
    op: int | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> DescribedCall:
    """Reduce over all ranks, and return this rank's share of the first dimension."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return DescribedCall(ReduceScatter(chosen, process_set))


def allgather(
    name: str | None = None, process_set: ProcessSet = global_process_set
) -> DescribedCall:
    """Return the tensors of all ranks, joined along the first dimension, which may differ."""
    return DescribedCall(Gather(process_set))


def broadcast(
    root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> DescribedCall:
    """Return the tensor of `root_rank`, a rank of the job; all ranks pass its shape and type."""
    return DescribedCall(Broadcast(root_rank, process_set))


def alltoall(
    splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> DescribedCall:
    """Send each rank its rows, and return the rows received from all ranks.

    With `splits`, the number of rows for each rank, also return how many were received from each.
    """
    return DescribedCall(AllToAll(process_set), splits=splits)


def _compressed(row: Row, place: int) -> Row:
    """Return a row with the additional argument `compression` at a position."""
    parameters = [*inspect.signature(row).parameters.values()]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters.insert(place, Parameter("compression", kind, default=Compressor))
    signature = Signature(parameters)

    def compressed(*args: Any, **kwargs: Any) -> DescribedCall:
        bound = signature.bind(*args, **kwargs).arguments
        compression = bound.pop("compression", Compressor)
        return row(**bound)._replace(compression=compression)

    compressed.__signature__ = signature  # type: ignore[attr-defined]
    compressed.__doc__ = row.__doc__
    return compressed


COMPRESSED = {
    "allreduce": _compressed(allreduce, 2),
    "reducescatter": _compressed(reducescatter, 1),
}
"""Rows of the calls that wait and return new tensors."""

_REDUCED = "average device_dense device_sparse compression op prescale_factor postscale_factor"
_SCATTERED = (
    "device_dense compression op name process_set ignore_name_scope prescale_factor "
    "postscale_factor"
)

ORDER_IN_TENSORFLOW = {
    "allreduce": f"{_REDUCED} name process_set ignore_name_scope",
    "grouped_allreduce": f"{_REDUCED} process_set ignore_name_scope name",
    "reducescatter": _SCATTERED,
    "grouped_reducescatter": _SCATTERED,
    "allgather": "name ignore_name_scope process_set",
    "grouped_allgather": "name ignore_name_scope process_set",
    "broadcast": "root_rank name ignore_name_scope process_set",
    "alltoall": "splits name ignore_name_scope process_set",
}
"""The arguments of each call after the tensors, as in `horovod.tensorflow`."""

NOT_USED = {"device_dense": "", "device_sparse": "", "ignore_name_scope": False}
"""Arguments that only TensorFlow's calls have, with their defaults. They change nothing: tensors
are reduced in host memory.
"""
