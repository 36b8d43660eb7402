"""Element types, by the number that they have in a call's fingerprint.

The first are the DTypes, which can be reduced; the others are only moved. A type that is not here
travels as the bytes that it is made of.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ITEM_SIZE, DType, ReduceOp


@dataclass(frozen=True, eq=False)
class ElementType:
    """A type of elements; each type is one object, which is found fast as a key."""

    number: int  # in a fingerprint
    name: str  # as numpy and torch both spell it, e.g. `float32`
    item_bytes: int  # size of one element, all parts together
    part_type: DType | None = None  # None where it is only moved
    parts: int = 1  # 2 for complex numbers that can be reduced
    units: int = 1  # as how many elements of the type of that number one counts

    def can_reduce(self, op: int) -> bool:
        """Return whether the ReduceOp is defined for these elements."""
        if self.part_type is None or (self.parts == 2 and op not in (ReduceOp.SUM, ReduceOp.AVG)):
            return False
        return op in range(len(ReduceOp)) and _core.reduce_supported(self.part_type, op)


class Span(NamedTuple):
    """A contiguous run of elements in memory; `address` is that of the first."""

    address: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    kind: ElementType

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.count * self.kind.item_bytes


_ROWS: tuple[tuple[Any, ...], ...] = (
    *((dtype.name.lower(), ITEM_SIZE[dtype], dtype) for dtype in DType),
    ("complex64", 8, DType.FLOAT32, 2),
    ("complex128", 16, DType.FLOAT64, 2),
    ("complex32", 4),
    ("float4_e2m1fn_x2", 1),
    ("float128", 16),
    ("complex256", 32),
    ("datetime64", 8),
    ("timedelta64", 8),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("bits8", 1),
    ("bits16", 2),
    ("bytes", 1),
)
ELEMENT_TYPES = tuple(ElementType(number, *row) for number, row in enumerate(_ROWS))
"""By number: append nothing, five bits are all taken. The last one stands for every other type."""

BYTES = ELEMENT_TYPES[-1]
"""What has no number of its own travels under this one, and is counted in bytes."""

_BY_NAME = {element.name: element for element in ELEMENT_TYPES}


@cache
def element_type(name: str, item_bytes: int) -> ElementType:
    """Return the type of that name, as numpy and torch spell it."""
    known = _BY_NAME.get(name.partition("[")[0], BYTES)  # of datetime64[s] and the like
    if known.name == name:
        return known
    units = item_bytes if known is BYTES else 1
    return replace(known, name=name, item_bytes=item_bytes, units=units)


_by_dtype: dict[Any, ElementType] = {}
type_of_dtype = _by_dtype.get
"""Return the type of a numpy or torch dtype that was learnt, or None."""


def learn(dtype: Any, argument: str) -> ElementType:
    """Return the type of a numpy or torch dtype, and remember it."""
    if isinstance(dtype, np.dtype) and (dtype.hasobject or not dtype.isnative):
        raise InvalidArgumentError(
            f"{argument}: expected numbers in this machine's byte order, got dtype {dtype}"
        )
    found = element_type(str(dtype).removeprefix("torch."), dtype.itemsize)
    return _by_dtype.setdefault(dtype, found)
