"""Horovod's reductions of torch tensors, with gradients; `move_calls.py` has what only moves.

The signatures are Horovod's. `name` is accepted for its sake: calls belong together by their order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.horovod.collectives import start_gather, start_reduce, start_reduce_scatter
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Op, Reduction, Sum, reduction
from hccl_py.horovod.torch.compression import Compression, Compressor
from hccl_py.horovod.torch.move_calls import grouped_allgather
from hccl_py.horovod.torch.tensors import TENSORS
from hccl_py.transport.errors import InvalidArgumentError


def _first(made: Sequence[Tensor]) -> Tensor:
    return made[0]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start `allreduce`, without a gradient."""
    given = [tensor]
    return grouped_allreduce_async(
        given, average, name, op, prescale_factor, postscale_factor, process_set
    ).then(_first)


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
    given, scales = [tensor], (prescale_factor, postscale_factor)
    return grouped_allreduce(given, average, name, compression, op, *scales, process_set)[0]


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start `allreduce_`."""
    given = [tensor]
    return grouped_allreduce_async_(
        given, average, name, op, prescale_factor, postscale_factor, process_set
    ).then(_first)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce in place; return `tensor`."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Start `grouped_allreduce`, without gradients."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    outputs = [torch.empty_like(each, requires_grad=False) for each in tensors]
    return start_reduce(TENSORS, tensors, outputs, chosen, process_set)


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
    pairs = [compression.compress(each) for each in tensors]
    made = _Allreduce.apply(chosen, process_set, *(each for each, _ in pairs))  # type: ignore[no-untyped-call]
    return [
        compression.decompress(each, context)
        for each, (_, context) in zip(made, pairs, strict=True)
    ]


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Start `grouped_allreduce_`."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return start_reduce(TENSORS, tensors, tensors, chosen, process_set)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce all tensors in place, small ones in one call; return them."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


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

    return start_gather(TENSORS, parts, process_set).then(assemble).wait


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """Start `reducescatter`, without a gradient."""
    given, scales = [tensor], (prescale_factor, postscale_factor)
    return grouped_reducescatter_async(given, name, op, process_set, *scales).then(_first)


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
    given, scales = [tensor], (prescale_factor, postscale_factor)
    return grouped_reducescatter(given, name, compression, op, process_set, *scales)[0]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """Start `grouped_reducescatter`, without gradients."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return _scattered(tensors, chosen, process_set)


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
    pairs = [compression.compress(each) for each in tensors]
    made = _Reducescatter.apply(chosen, process_set, *(each for each, _ in pairs))  # type: ignore[no-untyped-call]
    return [
        compression.decompress(each, context)
        for each, (_, context) in zip(made, pairs, strict=True)
    ]


def _scattered(
    tensors: Sequence[Tensor], chosen: Reduction, process_set: ProcessSet
) -> Handle[list[Tensor]]:
    devices = [each.device for each in tensors]
    started = start_reduce_scatter(TENSORS, tensors, chosen, process_set)
    return started.then(
        lambda made: [each.to(device) for each, device in zip(made, devices, strict=True)]
    )


class _Allreduce(torch.autograd.Function):
    """Gradients are reduced as the tensors were."""

    @staticmethod
    def forward(
        ctx: Any, chosen: Reduction, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.arguments = chosen, process_set
        outputs = [torch.empty_like(each) for each in tensors]
        return tuple(start_reduce(TENSORS, tensors, outputs, chosen, process_set).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None, *_Allreduce.apply(*ctx.arguments, *gradients)  # type: ignore[no-untyped-call]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chosen: Reduction, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.arguments = chosen, process_set
        return tuple(_scattered(tensors, chosen, process_set).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chosen, process_set = ctx.arguments
        # Horovod averages what it gathers in a backward pass.
        factor = chosen.prescale_factor * chosen.postscale_factor
        if chosen.op == Op.SUM:
            factor *= process_set.communicator.world_size
        scaled = [each * factor for each in gradients]
        return None, None, *grouped_allgather(scaled, process_set=process_set)
