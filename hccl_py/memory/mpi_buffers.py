"""Buffers as programs for mpi4py describe them, which is not imported here.

    [data, count], [data, type], [data, count, type], [data, (count, displacement), type]
    [data, counts, type], [data, (counts, displacements), type], [data, counts, displacements, type]

A type is an MPI.Datatype or a code as of numpy. Counts and displacements are in elements. The
second line is for arguments with a block for each rank, where a count is that of each block.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from hccl_py.memory.element_types import ElementType, Span, learn
from hccl_py.memory.exporters import HeldAddress
from hccl_py.transport.errors import InvalidArgumentError

_FORMS = "[data, count, type], [data, counts, type] or [data, (counts, displacements), type]"
_BYTES = ("uint8", "int8", "bytes")
_CODES = {"MPI_BYTE": "uint8", "MPI_PACKED": "uint8", "MPI_CHAR": "int8"}

SpanOf = Callable[[Any, str, bool], Span]


class _Parts(NamedTuple):
    data: Any
    counts: Any = None
    displacements: Any = None
    kind: Any = None


def is_mpi_in_place(buffer: object) -> bool:
    """Return whether an argument is MPI.IN_PLACE."""
    return _is_of_mpi(buffer, "InPlaceType")


def is_specification(buffer: Any) -> bool:
    """Return whether an argument describes a buffer, and is no list of buffers."""
    if not isinstance(buffer, list | tuple) or len(buffer) not in (2, 3, 4):
        return False
    return _is_type(buffer[-1]) or (len(buffer) == 2 and _is_counts(buffer[1]))


def span_of_specification(given: Any, name: str, writable: bool, span_of: SpanOf) -> Span:
    """Return the elements that a specification of one buffer describes."""
    parts = _parts(given, name)
    whole = _whole(parts, name, writable, span_of)
    count, displacement = parts.counts, parts.displacements
    if isinstance(count, tuple | list) and len(count) == 2 and displacement is None:
        count, displacement = count
    if not all(one is None or _is_number(one) for one in (count, displacement)):
        raise InvalidArgumentError(
            f"{name}: expected one count, as in [data, count, type], got {count!r}; counts for "
            "each rank describe arguments with a block for each rank"
        )
    start = 0 if displacement is None else int(displacement)
    length = whole.count - start if count is None else int(count)
    return _part(whole, start, length, name)


def blocks_of_specification(
    given: Any, name: str, world_size: int, writable: bool, span_of: SpanOf
) -> list[Span]:
    """Return the blocks of all ranks that a specification describes."""
    parts = _parts(given, name)
    whole = _whole(parts, name, writable, span_of)
    counts, displacements = parts.counts, parts.displacements
    if displacements is None and _is_pair(counts):
        counts, displacements = counts
    if counts is None:
        if whole.count % world_size:
            raise InvalidArgumentError(
                f"{name}: expected a size that {world_size} ranks can divide evenly, got "
                f"{whole.count} elements; give the counts, as in [data, counts, type]"
            )
        counts = whole.count // world_size
    if _is_number(counts):
        counts = [counts] * world_size
    counts = _numbers(counts, f"{name}: counts", world_size)
    if displacements is None:
        displacements = [0, *accumulate(counts)][:world_size]
    starts = _numbers(displacements, f"{name}: displacements", world_size)
    pairs = enumerate(zip(starts, counts, strict=True))
    return [_part(whole, start, count, f"{name}[{rank}]") for rank, (start, count) in pairs]


def _parts(given: Sequence[Any], name: str) -> _Parts:
    """Name the parts of a specification."""
    data, *rest = given
    kind = rest.pop() if rest and _is_type(rest[-1]) else None
    if _is_type(data) or data is None or any(_is_type(one) for one in rest):
        raise InvalidArgumentError(f"{name}: expected {_FORMS}, got {_shown(given)}")
    counts, displacements = [*rest, None, None][:2]
    return _Parts(data, counts, displacements, kind)


def _whole(parts: _Parts, name: str, writable: bool, span_of: SpanOf) -> Span:
    """Return the elements of a specification's buffer, of the type that it names."""
    span = span_of(parts.data, name, writable)
    # A HeldAddress keeps the memory exported.
    if parts.kind is None:
        return span
    kind = _element_type(parts.kind, name)
    if kind is span.kind:
        return span
    if span.kind.name not in _BYTES or span.num_bytes % kind.item_bytes:
        raise InvalidArgumentError(
            f"{name}: expected the type of its elements, {span.kind.name}, got {kind.name}; leave "
            f"the type out, or pass data.astype('{kind.name}')"
        )
    return Span(span.address, span.num_bytes // kind.item_bytes, kind)


def _element_type(given: Any, name: str) -> ElementType:
    if isinstance(given, str):
        try:
            return learn(np.dtype(given), name)
        except TypeError:
            raise InvalidArgumentError(
                f"{name}: expected a type of numpy, such as 'f4', got {given!r}"
            ) from None
    mpi_name = given.Get_name()
    code = _CODES.get(mpi_name) or getattr(given, "typestr", "")  # mpi4py 4
    dtype = np.dtype(code or "V1")
    if dtype.kind in "OSUV":
        raise InvalidArgumentError(
            f"{name}: expected a basic MPI.Datatype, such as MPI.FLOAT, got {mpi_name or given!r}; "
            "copy its elements into an array"
        )
    return learn(dtype, name)


def _part(whole: Span, start: int, count: int, name: str) -> Span:
    if start < 0 or count < 0 or start + count > whole.count:
        raise InvalidArgumentError(
            f"{name}: expected elements of a buffer of {whole.count}, got {count} from element "
            f"{start} on; change the count, or pass a longer buffer"
        )
    address = whole.address + start * whole.kind.item_bytes
    if isinstance(whole.address, HeldAddress):
        address = HeldAddress(address, whole.address.holder)
    return Span(address, count, whole.kind)


def _numbers(given: Any, name: str, world_size: int) -> list[int]:
    values = list(given) if isinstance(given, list | tuple | np.ndarray) else [given]
    if len(values) != world_size or not all(map(_is_number, values)):
        raise InvalidArgumentError(
            f"{name}: expected a number for each of {world_size} ranks, got {_shown(given)}"
        )
    return [int(value) for value in values]


def _is_of_mpi(value: object, name: str) -> bool:
    kinds = type(value).__mro__
    return any(kind.__module__ == "mpi4py.MPI" and kind.__name__ == name for kind in kinds)


def _is_type(value: object) -> bool:
    return isinstance(value, str) or _is_of_mpi(value, "Datatype")


def _is_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_counts(value: object) -> bool:
    """Return whether the last part of [data, part] is a count or counts, and no buffer."""
    if _is_pair(value):
        return True
    return _is_number(value) or (
        isinstance(value, list | tuple) and all(map(_is_number, value)) and len(value) > 0
    )


def _is_pair(value: Any) -> bool:
    """Return whether these are counts and displacements."""
    sequences = (list, tuple, np.ndarray)
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(isinstance(one, sequences) and all(map(_is_number, one)) for one in value)


def _shown(given: Any) -> str:
    if isinstance(given, list | tuple):
        return f"[{', '.join(type(one).__name__ for one in given)}]"
    return f"{given!r} ({type(given).__name__})"
