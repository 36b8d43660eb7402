"""torch's tensors for the collectives. Those of a device travel through host memory."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class TorchTensors:
    """See `collectives.arrays.Arrays`."""

    def ready(self, array: Tensor) -> Tensor:
        """See `Arrays`."""
        if array.is_cpu and array.is_contiguous() and not (array.is_conj() or array.is_neg()):
            return array
        return array.detach().resolve_conj().resolve_neg().cpu().contiguous()

    def output(self, array: Tensor) -> Tensor:
        """See `Arrays`."""
        return torch.empty_like(array, requires_grad=False)

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """See `Arrays`."""
        return torch.empty(tuple(shape), dtype=like.dtype)

    def beside(self, made: Tensor, given: Tensor) -> Tensor:
        """See `Arrays`."""
        return made.to(given.device)

    def assign(self, target: Tensor, source: Tensor) -> None:
        """See `Arrays`."""
        target.detach().copy_(source.detach())

    def scale(self, array: Tensor, factor: float) -> None:
        """See `Arrays`."""
        plain = array.detach()
        if plain.is_floating_point() or plain.is_complex():
            plain.mul_(factor)
        else:
            plain.copy_(plain.double().mul_(factor))

    def pack(self, arrays: Sequence[Tensor]) -> Tensor:
        """See `Arrays`."""
        with torch.no_grad():
            flat: Tensor = _flatten_dense_tensors(arrays)  # type: ignore[no-untyped-call]
            return flat

    def unpack(self, flat: Tensor, arrays: Sequence[Tensor]) -> None:
        """See `Arrays`."""
        with torch.no_grad():
            parts = _unflatten_dense_tensors(flat, arrays)  # type: ignore[no-untyped-call]
            torch._foreach_copy_(list(arrays), parts)


class TensorsInPlace(TorchTensors):
    """Results of reductions and broadcasts replace the tensors."""

    def output(self, array: Tensor) -> Tensor:
        """See `Arrays`."""
        return array


TENSORS = TorchTensors()
IN_PLACE = TensorsInPlace()
