"""What a caller's array or tensor is to the engine: an address, a count and an element type.

numpy arrays and torch tensors are read through their own attributes; torch is never imported here,
it is there already when somebody has a tensor. Everything else goes through `exporters.py`.
"""

from typing import Any, NamedTuple

import numpy as np

from hccl_py.memory.element_types import BYTES, ELEMENT_TYPES, NUMBERS
from hccl_py.memory.exporters import memory_of
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

MOVED_ONLY = -1
"""In place of a DType: an element type that can be moved but not reduced."""


class Kind(NamedTuple):
    """An element type.

    Attributes:
        name: as numpy and torch both spell it, e.g. `float32`.
        part_type: the DType of its parts, or MOVED_ONLY.
        parts: 2 for complex numbers, else 1.
        item_bytes: size of one element, all parts together.
        ops: the ReduceOps that are defined for it.
        number: what it is in a fingerprint, see `elements.py`.
        units: as how many elements of that number's type one counts.
    """

    name: str
    part_type: int
    parts: int
    item_bytes: int
    ops: frozenset[int]
    number: int
    units: int


class Span(NamedTuple):
    """A contiguous run of elements in memory.

    Attributes:
        address: of the first element.
        count: number of elements.
        kind: their type.
    """

    address: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    kind: Kind

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.count * self.kind.item_bytes


# Filled as element types are met: numpy and torch dtypes as keys.
_kinds: dict[Any, Kind] = {}
# Names of this module are found faster than attributes of others; every call comes here.
_new_span = tuple.__new__  # a named tuple's own constructor takes twice as long
_ndarray = np.ndarray
_address_of = _core.address_of
_kind_of = _kinds.get


def span_of(buffer: Any, name: str = "data", writable: bool = False) -> Span:
    """Find where the elements of a buffer lie.

    Args:
        buffer: C-contiguous memory of any shape: a numpy array, a CPU torch tensor, or whatever has
            the buffer protocol or `__dlpack__`.
        name: the argument's name, for messages.
        writable: whether the call writes to it.

    Raises:
        InvalidArgumentError: not such a buffer, or a read-only one to be written to.
    """
    if isinstance(buffer, _ndarray):
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
        kind = _kind_of(buffer.dtype) or _numpy_kind(buffer.dtype, name)
        return _new_span(Span, (address, buffer.size, kind))
    try:
        # Only tensors have is_cpu. Other objects with a dtype may have one of numpy's, which must
        # not be learnt as it is.
        if buffer.is_cpu and buffer.is_contiguous():
            kind = _kind_of(buffer.dtype) or _learn(buffer.dtype)
            # A tensor may stand for the conjugate or the negative of what is in its memory.
            if not (buffer.is_neg() or (kind.parts == 2 and buffer.is_conj())):
                return _new_span(Span, (buffer.data_ptr(), buffer.numel(), kind))
    except (AttributeError, RuntimeError):
        pass  # no tensor at all, or one without plain memory
    if hasattr(buffer, "data_ptr"):  # a tensor
        raise _not_memory(buffer, name)
    memory = memory_of(buffer, name, writable)
    if memory is None:
        raise _not_memory(buffer, name)
    kind = _kind_of(memory.dtype) or _learn_exported(memory.dtype, name)
    return _new_span(Span, (memory.address, memory.num_elements, kind))


def blocks_of(blocks: Any, name: str, world_size: int, writable: bool = False) -> list[Span]:
    """Find the blocks of all ranks.

    Args:
        blocks: one buffer of equal blocks, or a list or tuple with a buffer for every rank.
        name: the argument's name, for messages.
        world_size: number of ranks.
        writable: whether the call writes to them.

    Raises:
        InvalidArgumentError: not such buffers, or of several element types.
    """
    if not isinstance(blocks, (list, tuple)):
        address, total, kind = span_of(blocks, name, writable)
        count, remainder = divmod(total, world_size)
        if remainder:
            raise InvalidArgumentError(
                f"{name}: expected a size that {world_size} ranks can divide evenly, got {total} "
                "elements; pass a list of buffers for uneven blocks"
            )
        step = count * kind.item_bytes
        rest = [Span(address + rank * step, count, kind) for rank in range(1, world_size)]
        return [Span(address, count, kind), *rest]  # as it is: it may hold what lies there
    if len(blocks) != world_size:
        raise InvalidArgumentError(
            f"{name}: expected one buffer per rank ({world_size}), got {len(blocks)}"
        )
    spans = [span_of(block, f"{name}[{rank}]", writable) for rank, block in enumerate(blocks)]
    for rank, span in enumerate(spans):
        require_kind(span, f"{name}[{rank}]", spans[0], f"{name}[0]")
    return spans


def require_kind(span: Span, name: str, other: Span, other_name: str) -> None:
    """Check that a call has one element type.

    Raises:
        InvalidArgumentError: the types differ.
    """
    if span.kind != other.kind:
        raise InvalidArgumentError(
            f"{name}: expected elements of type {other.kind.name} like {other_name}, "
            f"got {span.kind.name}"
        )


def _numpy_kind(dtype: np.dtype[Any], name: str) -> Kind:
    if dtype.hasobject or not dtype.isnative:
        raise InvalidArgumentError(
            f"{name}: expected numbers in this machine's byte order, got dtype {dtype}"
        )
    return _learn(dtype)


def _learn_exported(dtype: Any, name: str) -> Kind:
    return _numpy_kind(dtype, name) if isinstance(dtype, np.dtype) else _learn(dtype)


def _learn(dtype: Any) -> Kind:
    name = str(dtype).removeprefix("torch.")
    number = NUMBERS.get(name.partition("[")[0], BYTES)  # of datetime64[s] and the like
    element = ELEMENT_TYPES[number]
    units = dtype.itemsize if number == BYTES else 1
    if element.part_type is None:
        kind = Kind(name, MOVED_ONLY, 1, dtype.itemsize, frozenset(), number, units)
        return _kinds.setdefault(dtype, kind)
    part_type = int(element.part_type)
    meaningful = (ReduceOp.SUM, ReduceOp.AVG) if element.parts == 2 else ReduceOp
    ops = frozenset(int(op) for op in meaningful if _core.reduce_supported(part_type, int(op)))
    kind = Kind(name, part_type, element.parts, dtype.itemsize, ops, number, units)
    return _kinds.setdefault(dtype, kind)


def _not_memory(buffer: Any, name: str) -> InvalidArgumentError:
    expected = f"{name}: expected a contiguous CPU torch tensor or C-contiguous numpy array"
    if not hasattr(buffer, "dtype") or not hasattr(buffer, "shape"):
        return InvalidArgumentError(
            f"{expected}, or what has the buffer protocol or __dlpack__, "
            f"got {type(buffer).__name__}"
        )
    device = str(getattr(buffer, "device", "cpu"))
    if device != "cpu":
        return InvalidArgumentError(f"{expected}, got one on {device}; copy it with .cpu()")
    return InvalidArgumentError(
        f"{expected}, got {type(buffer).__name__} of shape {tuple(buffer.shape)} that is not; "
        "make a plain copy first (.contiguous(), .resolve_conj(), numpy.ascontiguousarray)"
    )
