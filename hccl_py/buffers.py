"""What a caller's array or tensor is to the engine: an address, a count and an element type.

numpy arrays and torch tensors are read through their own attributes; torch is never imported here,
it is there already when somebody has a tensor.
"""

from typing import Any, NamedTuple

import numpy as np

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import DType

MOVED_ONLY = -1
"""In place of a DType: an element type that can be moved but not reduced."""


class Span(NamedTuple):
    """A contiguous run of elements in memory.

    Attributes:
        address: of the first element.
        count: number of elements; complex numbers count twice.
        dtype: a DType, or MOVED_ONLY.
        item_bytes: size of one element.
        is_complex: whether two elements are one number.
    """

    address: int
    count: int
    dtype: int
    item_bytes: int
    is_complex: bool


class _Kind(NamedTuple):
    dtype: int
    item_bytes: int
    is_complex: bool
    is_torch: bool


_BY_NAME = {
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "float16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "int8": DType.INT8,
    "uint8": DType.UINT8,
    "int16": DType.INT16,
    "uint16": DType.UINT16,
    "int32": DType.INT32,
    "uint32": DType.UINT32,
    "int64": DType.INT64,
    "uint64": DType.UINT64,
    "bool": DType.BOOL,
}
_COMPLEX = {"complex64": (DType.FLOAT32, 4), "complex128": (DType.FLOAT64, 8)}

# Filled as element types are met: numpy and torch dtypes as keys.
_KINDS: dict[Any, _Kind] = {}


def span_of(buffer: Any, name: str = "data") -> Span:
    """Find where the elements of a buffer lie.

    Args:
        buffer: contiguous CPU torch tensor or C-contiguous numpy array, any shape.
        name: the argument's name, for messages.

    Raises:
        InvalidArgumentError: not such a buffer.
    """
    try:
        kind = _KINDS[buffer.dtype]
        if kind.is_torch:
            if not (buffer.is_cpu and buffer.is_contiguous()):
                raise _refusal(buffer, name)
            address, count = buffer.data_ptr(), buffer.numel()
        else:
            if not buffer.flags.c_contiguous:
                raise _refusal(buffer, name)
            address, count = buffer.__array_interface__["data"][0], buffer.size
    except (KeyError, AttributeError, TypeError):
        _KINDS[buffer.dtype] = _kind_of(buffer, name)
        return span_of(buffer, name)
    if kind.is_complex:
        count *= 2
    return Span(address, count, kind.dtype, kind.item_bytes, kind.is_complex)


def require_writable(buffer: Any, name: str) -> None:
    """Refuse an output that must not be written.

    Raises:
        InvalidArgumentError: a read-only numpy array.
    """
    if isinstance(buffer, np.ndarray) and not buffer.flags.writeable:
        raise InvalidArgumentError(f"{name}: expected a writable array, got a read-only one")


def _kind_of(buffer: Any, name: str) -> _Kind:
    is_torch = hasattr(buffer, "data_ptr") and hasattr(buffer, "is_cpu")
    if not is_torch and not isinstance(buffer, np.ndarray):
        raise _refusal(buffer, name)
    dtype = buffer.dtype
    if not is_torch and (dtype.hasobject or not dtype.isnative):
        raise InvalidArgumentError(
            f"{name}: expected numbers in this machine's byte order, got dtype {dtype}"
        )
    word = str(dtype).removeprefix("torch.")
    if word in _COMPLEX:
        part, item_bytes = _COMPLEX[word]
        return _Kind(int(part), item_bytes, True, is_torch)
    reducible = _BY_NAME.get(word)
    return _Kind(
        MOVED_ONLY if reducible is None else int(reducible), dtype.itemsize, False, is_torch
    )


def _refusal(buffer: Any, name: str) -> InvalidArgumentError:
    expected = f"{name}: expected a contiguous CPU torch tensor or C-contiguous numpy array"
    if not hasattr(buffer, "dtype"):
        return InvalidArgumentError(f"{expected}, got {type(buffer).__name__}")
    place = getattr(buffer, "device", "cpu")
    if str(place) != "cpu":
        return InvalidArgumentError(f"{expected}, got one on {place}; copy it with .cpu()")
    return InvalidArgumentError(
        f"{expected}, got {type(buffer).__name__} of shape {tuple(buffer.shape)} that is not; "
        "make it contiguous first (.contiguous(), numpy.ascontiguousarray)"
    )
