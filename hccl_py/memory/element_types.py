"""Element types, by their number in a call's fingerprint.

The first are the DTypes, which can be reduced; the others are only moved. A type without a number
(dates, text, structures) is sent as bytes, and ranks compare a signature of its name.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import EXACT, ITEM_SIZE, DType, ReduceOp

_OF_COMPLEX = {*EXACT, *EXACT.values()}


@dataclass(frozen=True, eq=False)
class ElementType:
    """A type of elements; each type is one object, so that it is a fast key."""

    number: int  # in a fingerprint
    name: str  # as numpy and torch both spell it, e.g. `float32`
    item_bytes: int  # size of one element, all parts together
    part_type: DType | None = None  # None if it is only moved
    parts: int = 1  # 2 for complex numbers that can be reduced
    signature: int = 0  # of its name, for types with the number of `bytes`

    def can_reduce(self, op: int) -> bool:
        """Return whether the ReduceOp is defined for these elements."""
        if self.part_type is None or (self.parts == 2 and op not in _OF_COMPLEX):
            return False
        return op in range(len(ReduceOp)) and _core.reduce_supported(self.part_type, op)


class Span(NamedTuple):
    """A contiguous run of elements in memory; `address` is that of the first."""

    address: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is unused
    kind: ElementType

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.count * self.kind.item_bytes

    @property
    def end(self) -> int:
        """Address behind the last element."""
        return self.address + self.num_bytes

    def meets(self, other: "Span") -> bool:
        """Return whether both have bytes in common."""
        return max(self.address, other.address) < min(self.end, other.end)


_ROWS: tuple[tuple[Any, ...], ...] = (
    *((dtype.name.lower(), ITEM_SIZE[dtype], dtype) for dtype in DType),
    ("complex64", 8, DType.FLOAT32, 2),
    ("complex128", 16, DType.FLOAT64, 2),
    ("complex32", 4),
    ("float4_e2m1fn_x2", 1),
    ("float128", 16),
    ("complex256", 32),
    ("bits8", 1),
    ("bits16", 2),
    ("bytes", 1),
)
ELEMENT_TYPES = tuple(ElementType(number, *row) for number, row in enumerate(_ROWS))
"""By number, which has five bits. The last one stands for every other type."""

BYTES = ELEMENT_TYPES[-1]
"""Types without a number are sent under this one, and counted in bytes."""

SIGNATURE_BITS = 15
_NUM_SIGNATURES = 32749  # the largest prime of 15 bits

_BY_NAME = {element.name: element for element in ELEMENT_TYPES}
_BY_SIGNATURE = {BYTES.signature: BYTES}


@cache
def element_type(name: str, item_bytes: int) -> ElementType:
    """Return the type of that name, as numpy and torch spell it."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    signature = 1 + zlib.crc32(name.encode()) % (_NUM_SIGNATURES - 1)
    made = ElementType(BYTES.number, name, item_bytes, signature=signature)
    _BY_SIGNATURE.setdefault(signature, made)
    return made


def type_of_signature(signature: int) -> ElementType:
    """Return the type of other ranks' elements; a type unknown here, as bytes."""
    unknown = ElementType(BYTES.number, f"bytes of type {signature:x}", 1, signature=signature)
    return _BY_SIGNATURE.get(signature, unknown)


for _kind in ("datetime64", "timedelta64"):  # to know other ranks' types by name
    for _unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"):
        element_type(f"{_kind}[{_unit}]", 8)


def learn(dtype: Any, argument: str) -> ElementType:
    """Return the type of a numpy or torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if isinstance(dtype, np.dtype):
        if dtype.hasobject:
            raise InvalidArgumentError(
                f"{argument}: expected numbers, got dtype {name}, whose elements are Python "
                "objects, addresses in this process; send pickle.dumps of them as uint8"
            )
        if not dtype.isnative:
            raise InvalidArgumentError(
                f"{argument}: expected numbers in this machine's byte order, got dtype {name}; "
                "pass array.astype(array.dtype.newbyteorder('='))"
            )
    elif name.startswith(("qint", "quint")):
        raise InvalidArgumentError(
            f"{argument}: expected numbers, got quantised elements ({name}), which mean nothing "
            "without their scale; pass .int_repr() or .dequantize()"
        )
    return element_type(name, dtype.itemsize)
