"""torch's tensors for the collectives. Tensors of a device are copied through host memory."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.compression import compression


class _Tensors(Arrays):
    def ready(self, array: Tensor) -> Tensor:
        if array.is_cpu and array.is_contiguous() and not (array.is_conj() or array.is_neg()):
            return array
        return array.detach().resolve_conj().resolve_neg().cpu().contiguous()

    def output(self, array: Tensor) -> Tensor:
        return torch.empty_like(array, requires_grad=False)

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.empty(tuple(shape), dtype=like.dtype)

    def beside(self, made: Tensor, given: Tensor) -> Tensor:
        return made.to(given.device)

    def assign(self, target: Tensor, source: Tensor) -> None:
        target.detach().copy_(source.detach())

    def scale(self, array: Tensor, factor: float) -> None:
        plain = array.detach()
        if plain.is_floating_point() or plain.is_complex():
            plain.mul_(factor)
        else:
            plain.copy_(plain.double().mul_(factor))

    def pack(self, arrays: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            flat: Tensor = _flatten_dense_tensors(arrays)  # type: ignore[no-untyped-call]
            return flat

    def unpack(self, flat: Tensor, arrays: Sequence[Tensor]) -> None:
        with torch.no_grad():
            parts = _unflatten_dense_tensors(flat, arrays)  # type: ignore[no-untyped-call]
            torch._foreach_copy_(list(arrays), parts)


class _InPlace(_Tensors):
    """Results of reductions and broadcasts replace the tensors."""

    def output(self, array: Tensor) -> Tensor:
        return array


TENSORS: Arrays = _Tensors()
IN_PLACE: Arrays = _InPlace()

Compression = compression(Tensor.to, torch.float16, torch.is_floating_point)
