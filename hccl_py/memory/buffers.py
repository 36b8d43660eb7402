"""Converts arrays and tensors for the engine: an address, a count and an element type.

numpy arrays and torch tensors are read through their own attributes; torch is never imported here,
because a caller with a tensor has imported it. Other objects go through `exporters.py`.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from hccl_py.memory.element_types import Span, learn
from hccl_py.memory.exporters import span_of_exporter
from hccl_py.memory.mpi_buffers import (
    blocks_of_specification,
    is_specification,
    span_of_specification,
)
from hccl_py.memory.tensor_kinds import has_storage, without_elements, without_span
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import DType

# Names of this module are found faster than attributes of others, and every call runs this.
_new_span = tuple.__new__  # a named tuple's own constructor takes twice as long
_ndarray = np.ndarray
_MaskedArray = np.ma.MaskedArray
READER = _core.ArrayReader()
_read = READER.read


def span_of(buffer: Any, name: str = "data", writable: bool = False) -> Span:
    """Return the elements of a buffer: C-contiguous memory of any shape.

    Raise InvalidArgumentError for others, and for read-only ones that the call writes to.
    """
    found = _read(buffer)
    if found is not None:  # a common array or tensor
        address, count, kind = found
        if kind is None:  # the first buffer with these elements
            kind = learn(buffer.dtype, name)
            READER.learn(buffer, kind)
        return _new_span(Span, (address, count, kind))
    span = _span_of_array(buffer, name, writable)
    if span is None:
        span = _span_of_tensor(buffer, name)
    if span is not None:
        READER.learn(buffer, span.kind)
        return span
    if is_specification(buffer):
        return span_of_specification(buffer, name, writable, span_of)
    span = span_of_exporter(buffer, name, writable)
    if span is None:
        raise _not_memory(buffer, name)
    return span


@cache
def learn_common(torch: Any) -> None:
    """Learn numpy's elements that can be reduced, and torch's, before a first call has some."""
    for dtype in DType:
        name = dtype.name.lower()
        if hasattr(np, name):
            span_of(np.empty(1, name))
        if hasattr(torch, name):
            with suppress(InvalidArgumentError):  # a mode of torch may make other tensors
                span_of(torch.empty(1, dtype=getattr(torch, name), device="cpu"))


def require_elements(buffer: Any, name: str) -> None:
    """Raise InvalidArgumentError for arrays and tensors that are not just their elements.

    They may be on a device, have gaps, and be a conjugate or negative view.
    """
    if _read(buffer) is not None:
        return
    if isinstance(buffer, _MaskedArray):
        raise InvalidArgumentError(
            f"{name}: expected an array without a mask, got a numpy masked array, whose mask "
            "would stay behind; pass .filled(value), or .data and .mask one by one"
        )
    found = without_elements(buffer) if _is_tensor(buffer) else None
    if found:
        raise InvalidArgumentError(f"{name}: expected a plain tensor, got {found}")


def _is_tensor(buffer: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(buffer, torch.Tensor)


def _span_of_array(array: Any, name: str, writable: bool) -> Span | None:
    """Return the span of a numpy array; None for anything else."""
    if not isinstance(array, _ndarray):
        return None
    require_elements(array, name)
    if writable and not array.flags.writeable:
        raise InvalidArgumentError(
            f"{name}: expected a writable array, got a read-only one; pass a .copy()"
        )
    if not array.flags.c_contiguous:
        raise _not_memory(array, name)
    return Span(array.ctypes.data, array.size, learn(array.dtype, name))


def _span_of_tensor(tensor: Any, name: str) -> Span | None:
    """Return the span of a torch tensor; None for anything else."""
    if not hasattr(type(tensor), "data_ptr"):
        return None
    try:
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_nested:
            kind = learn(tensor.dtype, name)
            count = tensor.numel()
            has_memory = not count or has_storage(tensor, count)
            # A tensor may be the conjugate or the negative of its memory.
            if has_memory and not (tensor.is_neg() or (kind.parts == 2 and tensor.is_conj())):
                return Span(tensor.data_ptr(), count, kind)
    except (AttributeError, RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
    raise _not_memory(tensor, name)


def blocks_of(blocks: Any, name: str, world_size: int, writable: bool = False) -> list[Span]:
    """Find the blocks of all ranks, of one element type: equal ones of one buffer, or a list."""
    if not isinstance(blocks, (list, tuple)):
        span = span_of(blocks, name, writable)
        if span.count % world_size:
            raise InvalidArgumentError(
                f"{name}: expected a size that {world_size} ranks can divide evenly, got "
                f"{span.count} elements; pass a list of buffers for uneven blocks"
            )
        return cut(span, world_size)
    if is_specification(blocks):
        return blocks_of_specification(blocks, name, world_size, writable, span_of)
    if len(blocks) != world_size:
        raise InvalidArgumentError(
            f"{name}: expected one buffer per rank ({world_size}), got {len(blocks)}"
        )
    spans = [span_of(block, f"{name}[{rank}]", writable) for rank, block in enumerate(blocks)]
    for rank, span in enumerate(spans):
        if span.kind is not spans[0].kind:
            raise wrong_type(f"{name}[{rank}]", span, f"{name}[0]", spans[0])
    return spans


def cut(span: Span, num_blocks: int) -> list[Span]:
    """Return the equal blocks of a buffer."""
    address, total, kind = span
    count = total // num_blocks
    step = count * kind.item_bytes
    rest = [Span(address + index * step, count, kind) for index in range(1, num_blocks)]
    return [Span(address, count, kind), *rest]  # unchanged: its address may keep the memory alive


def run_of(blocks: Sequence[Span]) -> tuple[int, int] | None:
    """Return begin and end of adjacent blocks; None if they are not adjacent."""
    used = [block for block in blocks if block.count]
    if any(one.end != other.address for one, other in pairwise(used)) or not used:
        return None
    return used[0].address, used[-1].end


def wrong_type(name: str, span: Span, other_name: str, other: Span) -> InvalidArgumentError:
    """Return the error of a call with more than one element type."""
    return InvalidArgumentError(
        f"{name}: expected elements of type {other.kind.name} like {other_name}, "
        f"got {span.kind.name}"
    )


def _not_memory(buffer: Any, name: str) -> InvalidArgumentError:
    expected = f"{name}: expected a contiguous CPU torch tensor or C-contiguous numpy array"
    if _is_tensor(buffer):
        return InvalidArgumentError(f"{expected}, got {without_span(buffer)}")
    if isinstance(buffer, _ndarray):
        return InvalidArgumentError(
            f"{expected}, got one of shape {buffer.shape} with strides {buffer.strides} (bytes); "
            "pass numpy.ascontiguousarray of it"
        )
    return InvalidArgumentError(
        f"{expected}, or what has the buffer protocol or __dlpack__, got {type(buffer).__name__}"
    )
