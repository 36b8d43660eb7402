"""Runs Horovod's calls on torch's tensors, with gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.horovod.collectives.collective import Collective, Sizes
from hccl_py.horovod.collectives.rows import Gather
from hccl_py.horovod.compression import compressed
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Sum
from hccl_py.horovod.signatures import DescribedCall
from hccl_py.horovod.torch.tensors import TENSORS
from hccl_py.transport.errors import InvalidArgumentError


def run(described: DescribedCall, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Sizes]:
    """Wait for a call; its results are differentiable."""
    to_send, restore = compressed(described.compression, tensors)
    made, sizes = _differentiable(described.collective, to_send, described.splits)
    return restore(made), sizes


def received(splits: Any, sizes: Sizes) -> Tensor:
    """Return the received splits like the given ones; int32 where these are no tensor."""
    if isinstance(splits, Tensor):
        return torch.as_tensor(sizes).to(splits.device, dtype=splits.dtype)
    return torch.as_tensor(sizes, dtype=torch.int32)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Start the sum or average of a sparse tensor; call the function that this returns to get it.

    Each rank gets the elements of all ranks: two at one place are added when the tensor is
    coalesced.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op: expected Average or Sum of sparse tensors, got {op!r}")
    shape, divisor = tensor.shape, process_set.communicator.world_size if op == Average else 1
    parts = [tensor._indices().t(), tensor._values()]

    def assemble(made: tuple[list[Tensor], Sizes]) -> Tensor:
        indices, values = made[0]
        return torch.sparse_coo_tensor(
            indices.t(), values / divisor, shape, device=tensor.device, check_invariants=False
        )

    return Gather(process_set).start(TENSORS, parts).then(assemble).wait


def _differentiable(
    call: Collective, tensors: Sequence[Tensor], sizes: Any = None
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
