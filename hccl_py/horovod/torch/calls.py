"""Horovod's calls on torch's tensors; those that wait and return new tensors are differentiable.

The signatures are Horovod's. `name` is accepted for its sake: calls belong together by their order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.horovod.calls import Calls, waiting
from hccl_py.horovod.collectives.collective import Collective, Sizes
from hccl_py.horovod.collectives.move import Broadcast, Exchange, Gather
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.collectives.reduce_scatter import ReduceScatter
from hccl_py.horovod.compression import Compressor, compressed
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Sum, reduction
from hccl_py.horovod.torch.compression import Compression
from hccl_py.horovod.torch.tensors import IN_PLACE, TENSORS
from hccl_py.transport.errors import InvalidArgumentError

_calls, _in_place = Calls[Tensor, Tensor](TENSORS), Calls[Tensor, Tensor](IN_PLACE)

allreduce_async = _calls.allreduce_async
allreduce_async_ = _in_place.allreduce_async
grouped_allreduce_async = _calls.grouped_allreduce_async
grouped_allreduce_async_ = _in_place.grouped_allreduce_async
allgather_async = _calls.allgather_async
grouped_allgather_async = _calls.grouped_allgather_async
broadcast_async = _calls.broadcast_async
broadcast_async_ = _in_place.broadcast_async
reducescatter_async = _calls.reducescatter_async
grouped_reducescatter_async = _calls.grouped_reducescatter_async

allreduce_ = waiting("allreduce_", allreduce_async_, "Reduce in place; return `tensor`.")
grouped_allreduce_ = waiting(
    "grouped_allreduce_",
    grouped_allreduce_async_,
    "Reduce all tensors in place, small ones in one call; return them.",
)
broadcast_ = waiting(
    "broadcast_",
    broadcast_async_,
    "Overwrite the tensor with that of `root_rank`, a rank of the job; return it.",
)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the average over all ranks, or what `op` says; differentiable."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return _compressed(Reduce(chosen, process_set), [tensor], compression)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce all tensors as `allreduce` does, small ones in one call; differentiable."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return _compressed(Reduce(chosen, process_set), tensors, compression)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Start the sum or average of a sparse tensor; call what is returned to get it.

    Each rank gets all ranks' elements: two at one place are added when the tensor is coalesced.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op: expected Average or Sum of sparse tensors, got {op!r}")
    shape, divisor = tensor.shape, process_set.communicator.world_size if op == Average else 1
    parts = [tensor._indices().t(), tensor._values()]

    def assemble(made: list[Tensor]) -> Tensor:
        indices, values = made
        return torch.sparse_coo_tensor(
            indices.t(), values / divisor, shape, device=tensor.device, check_invariants=False
        )

    return grouped_allgather_async(parts, name, process_set).then(assemble).wait


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return all ranks' tensors, joined along the first dimension, which may differ."""
    return _differentiable(Gather(process_set), [tensor])[0][0]


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Gather each tensor of a list as `allgather` does; differentiable."""
    return _differentiable(Gather(process_set), tensors)[0]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of `root_rank`, a rank of the job; differentiable."""
    return _differentiable(Broadcast(root_rank, process_set), [tensor])[0][0]


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Tensor, Tensor]]:
    """Start `alltoall`, without a gradient; returns once all ranks have called it.

    The result has the received splits in any case.
    """
    started = Exchange(process_set).start(TENSORS, [tensor], _numbers(splits))
    return started.then(lambda made: (made[0][0], _like(splits, made[1])))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows, and return the rows that came from all ranks; differentiable.

    With `splits`, how many rows each rank gets, also return how many came from each.
    """
    (output,), sizes = _differentiable(Exchange(process_set), [tensor], _numbers(splits))
    return output if splits is None else (output, _like(splits, sizes))


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce, and return this rank's share of the first dimension; differentiable."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return _compressed(ReduceScatter(chosen, process_set), [tensor], compression)[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce each tensor as `reducescatter` does; differentiable."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return _compressed(ReduceScatter(chosen, process_set), tensors, compression)


def _numbers(splits: Tensor | Sequence[int] | None) -> Sequence[int] | None:
    return splits.tolist() if isinstance(splits, Tensor) else splits


def _like(splits: Tensor | Sequence[int] | None, sizes: Sizes) -> Tensor:
    """Return the received splits as the given ones are; int32 where these are no tensor."""
    if isinstance(splits, Tensor):
        return torch.as_tensor(sizes).to(splits.device, dtype=splits.dtype)
    return torch.as_tensor(sizes, dtype=torch.int32)


def _compressed(
    call: Collective, tensors: Sequence[Tensor], compression: type[Compressor]
) -> list[Tensor]:
    travelling, restore = compressed(compression, tensors)
    return restore(_differentiable(call, travelling)[0])


def _differentiable(
    call: Collective, tensors: Sequence[Tensor], sizes: Sequence[int] | Sizes | None = None
) -> tuple[list[Tensor], Sizes]:
    *made, received = _Differentiable.apply(call, sizes, *tensors)  # type: ignore[no-untyped-call]
    return made, received


class _Differentiable(torch.autograd.Function):
    """Any collective; autograd passes on the sizes, which are no tensors."""

    @staticmethod
    def forward(ctx: Any, call: Collective, sizes: Any, *tensors: Tensor) -> tuple[Any, ...]:
        made, received = call.start(TENSORS, tensors, sizes).wait()
        ctx.call, ctx.sizes = call, received
        return *made, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return None, None, *_differentiable(ctx.call.gradient(), gradients[:-1], ctx.sizes)[0]
