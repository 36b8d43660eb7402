"""The signatures of Horovod's calls in the background, which all libraries of arrays share.

`name` is accepted for Horovod's sake: calls belong together by their order. The calls that wait are
made of these by `waiting`; where they are differentiable, each library has its own.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.collectives.collective import Collective
from hccl_py.horovod.collectives.move import Broadcast, Gather
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.collectives.reduce_scatter import ReduceScatter
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, reduction

Tensor = TypeVar("Tensor")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Calls(Generic[Tensor, Result]):
    """The calls on the arrays of one library. Their results have no gradients."""

    def __init__(self, arrays: Arrays[Any]) -> None:
        """Take the library, which also says whether results replace what was given."""
        self._arrays = arrays

    def allreduce_async(
        self,
        tensor: Tensor,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[Result]:
        """Start `allreduce`; `allreduce_async_` starts `allreduce_`."""
        chosen = reduction(op, average, prescale_factor, postscale_factor)
        return self._one(Reduce(chosen, process_set), tensor)

    def grouped_allreduce_async(
        self,
        tensors: Sequence[Tensor],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[list[Result]]:
        """Start `grouped_allreduce`; `grouped_allreduce_async_` starts `grouped_allreduce_`."""
        chosen = reduction(op, average, prescale_factor, postscale_factor)
        return self._all(Reduce(chosen, process_set), tensors)

    def allgather_async(
        self,
        tensor: Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[Result]:
        """Start `allgather`; returns once all ranks have called it."""
        return self._one(Gather(process_set), tensor)

    def grouped_allgather_async(
        self,
        tensors: Sequence[Tensor],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[list[Result]]:
        """Start `grouped_allgather`; returns once all ranks have called it."""
        return self._all(Gather(process_set), tensors)

    def broadcast_async(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle[Result]:
        """Start `broadcast`; `broadcast_async_` starts `broadcast_`."""
        return self._one(Broadcast(root_rank, process_set), tensor)

    def reducescatter_async(
        self,
        tensor: Tensor,
        name: str | None = None,
        op: int | None = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[Result]:
        """Start `reducescatter`."""
        chosen = reduction(op, None, prescale_factor, postscale_factor)
        return self._one(ReduceScatter(chosen, process_set), tensor)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[Tensor],
        name: str | None = None,
        op: int | None = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[list[Result]]:
        """Start `grouped_reducescatter`."""
        chosen = reduction(op, None, prescale_factor, postscale_factor)
        return self._all(ReduceScatter(chosen, process_set), tensors)

    def _all(self, call: Collective, tensors: Sequence[Tensor]) -> Handle[list[Result]]:
        return call.start(self._arrays, tensors).then(lambda made: made[0])

    def _one(self, call: Collective, tensor: Tensor) -> Handle[Result]:
        return call.start(self._arrays, [tensor]).then(lambda made: made[0][0])


def waiting(
    name: str, start: Callable[Arguments, Handle[Result]], effect: str
) -> Callable[Arguments, Result]:
    """Return the form of a call that waits, with the signature of the one that starts it.

    Args:
        name: the name of the function in the module that calls this.
        start: a method of `Calls`.
        effect: the docstring of the function.
    """

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return start(*args, **kwargs).wait()

    signature = inspect.signature(start)
    (result,) = get_args(signature.return_annotation)
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = effect
    return call
