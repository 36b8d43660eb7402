"""Names torch tensors that are not plain memory, and what to pass instead.

Torch has tensors that hold others, and some with no memory. `Communicator` and torch.distributed
use the same texts. Torch is imported inside functions, because a caller with a tensor has imported
it.
"""

from typing import Any

_NESTED = "a nested one; pass its .values(), which are one tensor"


def has_storage(tensor: Any, reach: int) -> bool:
    """Return whether a host tensor's storage holds `reach` elements from its first one on.

    A storage may be freed or cut while tensors view it, and a ZeroTensor never had one.
    """
    storage = tensor.untyped_storage()
    if storage.device.type != "cpu":  # of a fake tensor
        return False
    end: int = (tensor.storage_offset() + reach) * tensor.itemsize
    return bool(storage.data_ptr() != 0 and end <= storage.nbytes())


def is_fake(tensor: Any) -> bool:
    """Return whether `tensor` has a shape but no memory (torch.compile and meta tracing)."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def holder(tensor: Any) -> str | None:
    """Describe an instance of a subclass that holds other tensors; None: it is not one."""
    import torch
    from torch.masked import MaskedTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    kind = type(tensor).__name__
    if isinstance(tensor, MaskedTensor):
        return "a masked one; pass .get_data() and .get_mask() one by one"
    if tensor.is_nested:
        return _NESTED
    if is_traceable_wrapper_subclass(tensor):
        return (
            f"{kind}, which holds others; pass the tensor inside it (a DTensor's .to_local(), the "
            ".wait() of a functional collective's result)"
        )
    if torch.nn.parameter.is_lazy(tensor):
        return f"{kind}, which has no memory yet; run the module once first"
    return None


def no_memory(tensor: Any) -> str:
    """Describe an unknown kind of tensor."""
    return f"{type(tensor).__name__}, which is no plain memory; pass the tensors that it is made of"


def without_memory(tensor: Any) -> str | None:
    """Describe a host tensor whose elements are not in its own memory; None: they are.

    A ZeroTensor is not described: a copy of it is plain.
    """
    import torch

    if tensor.is_nested:
        return _NESTED
    if tensor.layout is not torch.strided:
        return f"one of layout {tensor.layout}; pass .to_dense() of it"
    if tensor.is_quantized:
        return (
            f"a quantised one ({tensor.dtype}), which means nothing without its scale; pass "
            ".int_repr(), or .dequantize()"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (
            "one of a transform of torch.func (vmap, grad, jvp), which has no memory; communicate "
            "outside of the transform"
        )
    if torch._is_functional_tensor(tensor):
        return "a functional one, which has no memory; communicate outside of the trace"
    if tensor._is_zerotensor() or not tensor.numel():
        return None
    steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        if has_storage(tensor, steps + 1):
            return None
    except RuntimeError:
        return no_memory(tensor)
    return (
        "one without memory for its elements (its storage was freed or cut); make the storage "
        "as long as the tensor first"
    )


def without_elements(tensor: Any) -> str | None:
    """Describe a tensor of any device without elements of its own; None: it has them."""
    if is_fake(tensor):
        return "a fake one, which has no memory; communicate outside of the trace"
    device = tensor.device.type
    if device == "meta":
        return "one on meta, which has no memory; make it on the CPU"
    return holder(tensor) or (without_memory(tensor) if device == "cpu" else None)


def without_span(tensor: Any) -> str:
    """Describe a tensor whose elements are not contiguous in host memory."""
    found = without_elements(tensor)
    if found:
        return found
    if tensor.device.type != "cpu":
        return f"one on {tensor.device}; pass .cpu() of it"
    if tensor._is_zerotensor():
        return "one of torch's immutable tensors of zeros; pass .clone()"
    if tensor.is_conj():
        return "the conjugate of what is in memory; pass .resolve_conj()"
    if tensor.is_neg():
        return "the negative of what is in memory; pass .resolve_neg()"
    if not tensor.is_contiguous():
        strides = tuple(tensor.stride())
        return f"one of shape {tuple(tensor.shape)} with strides {strides}; pass .contiguous()"
    return no_memory(tensor)
