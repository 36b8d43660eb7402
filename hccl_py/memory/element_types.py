"""Element types by the number that they have in a call's fingerprint.

The first are the DTypes, which can be reduced; the others are only moved. A type that is not here
travels as the bytes that it is made of.
"""

from typing import NamedTuple

from hccl_py.transport.types import ITEM_SIZE, DType


class ElementType(NamedTuple):
    """A type of elements.

    Attributes:
        name: as numpy and torch both spell it.
        item_bytes: size of one element.
        part_type: the DType of its parts; None where it is only moved.
        parts: 2 for complex numbers that can be reduced, else 1.
    """

    name: str
    item_bytes: int
    part_type: DType | None = None
    parts: int = 1


_MOVED = (
    ElementType("complex32", 4),
    ElementType("float4_e2m1fn_x2", 1),
    ElementType("float128", 16),
    ElementType("complex256", 32),
    ElementType("datetime64", 8),
    ElementType("timedelta64", 8),
    ElementType("qint8", 1),
    ElementType("quint8", 1),
    ElementType("qint32", 4),
    ElementType("bits8", 1),
    ElementType("bits16", 2),
)

ELEMENT_TYPES: tuple[ElementType, ...] = (
    *(ElementType(dtype.name.lower(), ITEM_SIZE[dtype], dtype) for dtype in DType),
    ElementType("complex64", 8, DType.FLOAT32, 2),
    ElementType("complex128", 16, DType.FLOAT64, 2),
    *_MOVED,
    ElementType("bytes", 1),
)
"""By number: append nothing, five bits are all taken. The last one stands for every other type."""

BYTES = len(ELEMENT_TYPES) - 1
"""The number of what has none of its own; such elements are counted in bytes."""

NUMBERS: dict[str, int] = {element.name: number for number, element in enumerate(ELEMENT_TYPES)}
"""Numbers by name."""
