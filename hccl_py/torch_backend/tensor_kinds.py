"""Which tensors are plain memory. Torch has others: labels on tensors, and some with no memory.

What is wrong with a tensor is raised as a TypeError that says what it is, and what to pass instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hccl_py.memory.buffers import has_storage

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
"""Every other type of tensor is a subclass, which `unwrapped` looks into."""


def is_fake(tensor: Tensor) -> bool:
    """Return whether `tensor` has a shape but no memory (torch.compile and meta tracing)."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the memory behind a subclass of Tensor that is only a label on it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    kind = type(tensor).__name__
    if is_fake(tensor):
        return tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        # The result of a functional collective: its first use waits for it.
        waited: Tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
        return waited
    if is_traceable_wrapper_subclass(tensor):
        raise TypeError(
            f"{kind}, which holds others; pass the tensor inside it (a DTensor's .to_local())"
        )
    if torch.nn.parameter.is_lazy(tensor):
        raise TypeError(f"{kind}, which has no memory yet; run the module once first")
    try:
        plain = tensor.as_subclass(Tensor)
    except (TypeError, RuntimeError, NotImplementedError):
        plain = tensor
    if type(plain) not in PLAIN_TYPES:
        raise TypeError(f"{kind}, which is no plain memory; pass the tensors that it is made of")
    return plain


def require_memory(tensor: Tensor) -> Tensor:
    """Return a host tensor, or raise TypeError if its elements do not lie in memory of its own.

    A ZeroTensor passes: a copy of it is plain.
    """
    if tensor.is_nested:
        raise TypeError("a nested one; pass its .values(), which are one tensor")
    if tensor.is_quantized:
        raise TypeError(
            f"a quantised one ({tensor.dtype}), which means nothing without its scale; pass "
            ".int_repr(), or .dequantize()"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise TypeError(
            "one of a transform of torch.func (vmap, grad, jvp), which has no memory; communicate "
            "outside of the transform"
        )
    if torch._is_functional_tensor(tensor):
        raise TypeError("a functional one, which has no memory; communicate outside of the trace")
    if not (tensor._is_zerotensor() or has_storage(tensor)):
        raise TypeError(
            "one without memory for its elements (its storage was freed or cut); make the storage "
            "as long as the tensor first"
        )
    return tensor
