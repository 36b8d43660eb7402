"""all_reduce of sparse COO tensors: every rank gathers all ranks' values and adds them.

Ranks have different indices, so no partial result can be reduced on the way. Ranks first exchange
how many values each has. An asynchronous call waits for that exchange too, but not for the values.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.memory.tensor_kinds import is_fake
from hccl_py.torch_backend.checks.arguments import Call
from hccl_py.torch_backend.submit import CallingGroup
from hccl_py.torch_backend.work import HcclWork, as_torch_error
from hccl_py.transport.errors import HcclError
from hccl_py.transport.types import ReduceOp


def all_reduce_sparse(group: CallingGroup, call: Call, tensor: Tensor) -> dist.Work:
    """Sum a sparse tensor of one shape over all ranks, in place; the result is coalesced.

    Ranks' numbers of values may differ. The operation is SUM, AVG or a pre-multiplied sum.
    """
    call.require_own_device(tensor)
    op = call.reduce_op()
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise call.invalid(f"`op` of a sparse tensor must be sum or avg, got {op.name.lower()}")
    if tensor._is_view() and tensor._base is not None and tensor._base.is_complex():
        # Torch passes a real view, whose new values would not reach the complex tensor.
        tensor = tensor._base
    call.inputs.append(tensor)
    call.results.append(tensor)
    if is_fake(tensor) or tensor.is_meta:
        return HcclWork((), call.results)
    for part in (tensor._indices(), tensor._values()) if tensor.is_cpu else ():
        call.require_memory("tensors", part)
    source = tensor.detach().coalesce().cpu()
    values = call.scaled(source.values())
    counts = _counts(group, call, source)
    indices = [torch.empty(source.sparse_dim(), count, dtype=torch.int64) for count in counts]
    blocks = [torch.empty(count, *values.shape[1:], dtype=values.dtype) for count in counts]
    divisor = len(counts) if op is ReduceOp.AVG else 1
    # Writing back is the addition.
    call.copies.append((_Sum(tensor, indices, blocks, divisor), tensor))  # type: ignore[arg-type]
    parts = (indices, source.indices().contiguous()), (blocks, values.contiguous())
    if tensor.is_cpu or not call.opts.asyncOp:
        return group.submit(call, "all_gather", *parts)
    # Another thread could not write to an accelerator in the caller's stream order.
    call.opts.asyncOp = False
    group.submit(call, "all_gather", *parts)
    return HcclWork((), call.results)


def _counts(group: CallingGroup, call: Call, source: Tensor) -> list[int]:
    kind = f"{tuple(source.shape)} of {source.dtype}, {source.sparse_dim()} dimension(s) sparse"
    digest = int.from_bytes(hashlib.sha256(kind.encode()).digest()[:7], "big")
    mine = torch.tensor([source._nnz(), digest])
    everyones = torch.empty(group.communicator.world_size, 2, dtype=torch.int64)
    group.drain()
    try:
        group.carrier().all_gather(everyones, mine, timeout_s=call.timeout_s())
    except HcclError as error:
        raise as_torch_error(error)  # noqa: B904  # it names its cause
    for rank, theirs in enumerate(everyones[:, 1].tolist()):
        if theirs != digest:
            raise call.invalid(
                f"all ranks must have a sparse tensor of one shape, dtype and number of sparse "
                f"dimensions; this rank's is {kind}, that of rank {rank} is not"
            )
    counts: list[int] = everyones[:, 0].tolist()
    return counts


@dataclass
class _Sum:
    """The values of all ranks; `copy_` adds them into the caller's tensor."""

    tensor: Tensor
    indices: Sequence[Tensor]
    blocks: Sequence[Tensor]
    divisor: int

    def copy_(self, _: Tensor) -> None:
        """Add in rank order, so that all ranks get the same bits."""
        tensor = self.tensor
        indices, values = torch.cat(tuple(self.indices), 1), torch.cat(tuple(self.blocks))
        # A tensor's parts must have its inference mode.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            total = self._added_up(indices, values)
            if self.divisor != 1:
                exact = values.is_floating_point() or values.is_complex()
                average = total.values()
                average.div_(self.divisor, rounding_mode=None if exact else "trunc")
                if exact and not average.isfinite().all():  # the sum may be too large for its type
                    average.copy_(torch.where(average.isfinite(), average, self._scaled(indices)))
            tensor.copy_(total)

    def _added_up(self, indices: Tensor, values: Tensor) -> Tensor:
        made = torch.sparse_coo_tensor(indices, values, self.tensor.shape, check_invariants=False)
        return made.coalesce()

    def _scaled(self, indices: Tensor) -> Tensor:
        """Average the values scaled down by a power of two, which loses the bits of denormals."""
        down = 2.0 ** -self.divisor.bit_length()
        values = torch.cat([block * down for block in self.blocks])
        total = self._added_up(indices, values).values()
        average = total / (self.divisor * down)
        if average.is_complex():
            return average
        limits = torch.finfo(average.dtype)
        return torch.where(total.isfinite(), average.clamp(limits.min, limits.max), average)
