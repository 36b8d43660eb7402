"""Horovod's calls that move torch tensors and reduce nothing, with gradients.

The signatures are Horovod's. `name` is accepted for its sake: calls belong together by their order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.horovod.collectives import start_broadcast, start_exchange, start_gather, start_reduce
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Reduction
from hccl_py.horovod.torch.tensors import TENSORS


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Start `allgather`, without a gradient; returns once all ranks have called it."""
    return grouped_allgather_async([tensor], name, process_set).then(lambda made: made[0])


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return all ranks' tensors, joined along the first dimension, which may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Start `grouped_allgather`, without gradients; returns once all ranks have called it."""
    devices = [each.device for each in tensors]
    return start_gather(TENSORS, tensors, process_set).then(
        lambda made: [each.to(device) for each, device in zip(made, devices, strict=True)]
    )


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Gather each tensor of a list as `allgather` does; differentiable."""
    return list(_Allgather.apply(process_set, *tensors))  # type: ignore[no-untyped-call]


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start `broadcast`, without a gradient."""
    output = torch.empty_like(tensor, requires_grad=False)
    return start_broadcast(TENSORS, tensor, output, root_rank, process_set)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of `root_rank`, a rank of the job; differentiable."""
    made: Tensor = _Broadcast.apply(tensor, root_rank, process_set)  # type: ignore[no-untyped-call]
    return made


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start `broadcast_`."""
    return start_broadcast(TENSORS, tensor, tensor, root_rank, process_set)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Overwrite the tensor with that of `root_rank`, a rank of the job; return it."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Tensor, Tensor]]:
    """Start `alltoall`, without a gradient; returns once all ranks have called it.

    The result has the received splits in any case.
    """
    device = tensor.device
    kind, place = torch.int32, torch.device("cpu")
    if isinstance(splits, Tensor):
        kind, place, splits = splits.dtype, splits.device, splits.tolist()
    started = start_exchange(TENSORS, tensor, splits, process_set)
    return started.then(
        lambda made: (made[0].to(device), torch.as_tensor(made[1]).to(place, dtype=kind))
    )


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows, and return the rows that came from all ranks; differentiable.

    With `splits`, how many rows each rank gets, also return how many came from each.
    """
    output, received = _Alltoall.apply(tensor, splits, process_set)  # type: ignore[no-untyped-call]
    return output if splits is None else (output, received)


def _averaged(gradients: Sequence[Tensor], process_set: ProcessSet) -> list[Tensor]:
    outputs = [torch.empty_like(each) for each in gradients]
    return start_reduce(TENSORS, gradients, outputs, Reduction(Average), process_set).wait()


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.lengths, ctx.process_set = [len(each) for each in tensors], process_set
        return tuple(grouped_allgather_async(tensors, None, process_set).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Average, as Horovod does, and keep the rows that were this rank's."""
        process_set = ctx.process_set
        lengths = torch.tensor([ctx.lengths])
        every = grouped_allgather_async([lengths], None, process_set).wait()[0]
        begins = every[: process_set.communicator.rank].sum(0).tolist()
        averaged = _averaged(gradients, process_set)
        parts = zip(averaged, begins, ctx.lengths, strict=True)
        return None, *(each.narrow(0, begin, length) for each, begin, length in parts)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, process_set: ProcessSet) -> Tensor:
        ctx.arguments = root_rank, process_set
        return broadcast_async(tensor, root_rank, None, process_set).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Average, as Horovod does, on the root; nothing of the others' tensors was used."""
        root_rank, process_set = ctx.arguments
        (averaged,) = _averaged([gradient], process_set)
        is_root = process_set.communicator.rank == process_set.root(root_rank)
        return averaged if is_root else torch.zeros_like(averaged), None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, process_set: ProcessSet) -> Any:
        output, received = alltoall_async(tensor, splits, None, process_set).wait()
        ctx.arguments = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
        received, process_set = ctx.arguments
        returned, _ = alltoall_async(gradient, received, None, process_set).wait()
        return returned, None, None
