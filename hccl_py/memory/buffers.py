"""What a caller's array or tensor is to the engine: an address, a count and an element type.

numpy arrays and torch tensors are read through their own attributes; torch is never imported here,
it is there already when somebody has a tensor. Everything else goes through `exporters.py`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hccl_py.memory.element_types import Span, learn, type_of_dtype
from hccl_py.memory.exporters import span_of_exporter
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError

# Names of this module are found faster than attributes of others; every call comes here.
_new_span = tuple.__new__  # a named tuple's own constructor takes twice as long
_ndarray = np.ndarray
_address_of = _core.address_of
_MaskedArray = np.ma.MaskedArray
_CERTAIN = 1 << 36  # what a tensor without storage calls its address is its offset, in bytes


def span_of(buffer: Any, name: str = "data", writable: bool = False) -> Span:
    """Find where the elements of a buffer lie: C-contiguous memory of any shape.

    Raise InvalidArgumentError for others, and for read-only ones that the call writes to.
    """
    if isinstance(buffer, _ndarray):
        if type(buffer) is not _ndarray and isinstance(buffer, _MaskedArray):
            raise InvalidArgumentError(
                f"{name}: expected an array without a mask, got a numpy masked array, whose mask "
                "would stay behind; pass .filled(value), or .data and .mask one by one"
            )
        try:
            address = _address_of(buffer, writable)
        except (ValueError, BufferError):
            if writable and not buffer.flags.writeable:
                raise InvalidArgumentError(
                    f"{name}: expected a writable array, got a read-only one"
                ) from None
            if not buffer.flags.c_contiguous:
                raise _not_memory(buffer, name) from None
            address = buffer.ctypes.data  # dates and the like, which are no Python buffers
        kind = type_of_dtype(buffer.dtype) or learn(buffer.dtype, name)
        return _new_span(Span, (address, buffer.size, kind))
    try:
        if buffer.is_cpu and buffer.is_contiguous():
            kind = type_of_dtype(buffer.dtype) or learn(buffer.dtype, name)
            # A tensor may stand for the conjugate or the negative of what is in its memory.
            if not (buffer.is_neg() or (kind.parts == 2 and buffer.is_conj())):
                address, count = buffer.data_ptr(), buffer.numel()
                if (address > _CERTAIN or not count or has_storage(buffer)) and not (
                    buffer.is_nested
                ):
                    return _new_span(Span, (address, count, kind))
    except (AttributeError, RuntimeError, NotImplementedError, ValueError) as error:
        # No tensor at all, or one without plain memory.
        if isinstance(error, InvalidArgumentError):
            raise
    if hasattr(type(buffer), "data_ptr"):  # a tensor
        raise _not_memory(buffer, name)
    span = span_of_exporter(buffer, name, writable)
    if span is None:
        raise _not_memory(buffer, name)
    return span


def has_storage(tensor: Any) -> bool:
    """Return whether a dense tensor has memory for its elements: not all kinds of torch have.

    Their storages were freed, are too short, or never were, as in a tensor that is to be all zeros.
    """
    storage = tensor.untyped_storage()
    steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + steps + 1) * tensor.itemsize
    return bool(tensor.numel() == 0 or (storage.data_ptr() and end <= storage.nbytes()))


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
    return [Span(address, count, kind), *rest]  # as it is: it may hold what lies there


def run_of(blocks: Sequence[Span]) -> tuple[int, int] | None:
    """Return where blocks that follow one another begin and end; None if they do not."""
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
    kind = type(buffer).__name__
    try:
        shape = f"{kind} of shape {tuple(buffer.shape)}"
    except (RuntimeError, ValueError, TypeError):  # a nested tensor, an uninitialized parameter
        shape = kind
    except AttributeError:
        return InvalidArgumentError(
            f"{expected}, or what has the buffer protocol or __dlpack__, got {kind}"
        )
    device = str(getattr(buffer, "device", "cpu"))
    if device != "cpu":
        return InvalidArgumentError(f"{expected}, got one on {device}; copy it with .cpu()")
    return InvalidArgumentError(
        f"{expected}, got {shape} that is not; make a plain copy first (.contiguous(), "
        ".resolve_conj(), .clone(), .to_dense(), numpy.ascontiguousarray)"
    )
