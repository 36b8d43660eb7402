"""Input data and expected results, in numpy; no torch here.

Every rank's input repeats a pattern of `PERIOD` small whole numbers, so the expected result
repeats with the same period: one period describes a buffer of any size. The period is a prime, so
no usual block size is its multiple and data at a wrong offset is noticed. Values are so small that
every element type represents every result exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PERIOD = 251
ITEM_SIZES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
FLOAT_TYPES = {"float32": 2**-23, "float64": 2**-52, "float16": 2**-10, "bfloat16": 2**-7}
"""Floating-point types, each with the distance from 1 to the next number."""

REDUCE_OPS = ("sum", "product", "min", "max", "avg", "band", "bor", "bxor")
BITWISE_OPS = frozenset({"band", "bor", "bxor"})

Pattern = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Call:
    """One call as all ranks see it."""

    op: str
    """The collective."""
    world_size: int
    root: int
    reduce_op: str
    dtype: str
    count: int
    """Elements of one rank's block."""
    in_place: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    """For send_recv and ping_pong: sender and receiver; empty: every rank sends to the next one."""

    def peer(self, rank: int) -> int | None:
        """Return the other rank of this rank's pair."""
        return next((a + b - rank for a, b in self.pairs if rank in (a, b)), None)

    def begins(self, rank: int) -> bool:
        """Return whether a rank is the first of its pair."""
        return any(first == rank for first, _ in self.pairs)

    def takes_part(self, rank: int) -> bool:
        """Return whether a rank has anything to do."""
        return not self.pairs or self.peer(rank) is not None


BARRIER = Call("barrier", 1, 0, "none", "uint8", 0)


@dataclass(frozen=True)
class Piece:
    """A contiguous part of an expected result: `count` elements that repeat `pattern`."""

    count: int
    pattern: npt.NDArray[np.int64] | npt.NDArray[np.float64]


def contribution(call: Call, rank: int, offset: int = 0) -> Pattern:
    """Make one period of a rank's input, from element `offset` on; same call, same values."""
    index = (np.arange(PERIOD, dtype=np.int64) + offset) % PERIOD
    # Random, because regular inputs can sum up to a constant, which would hide a wrong offset.
    base = np.random.default_rng(rank).integers(0, 1 << 15, PERIOD)[index]
    # For each element only some ranks have a factor or a bit, so that a product stays small.
    place = (rank - index) % call.world_size
    if call.reduce_op in ("sum", "avg"):
        return base % min(11, max(2, 127 // call.world_size + 1))
    if call.reduce_op == "product":
        return 1 + (place < 6) * (base % 2)
    if call.reduce_op in ("bor", "band"):
        bits = (place < 3) * (1 << base % 7)
        return bits if call.reduce_op == "bor" else 127 ^ bits
    return base % 101


_REDUCE: dict[str, Callable[[Pattern], Pattern]] = {
    "sum": np.add.reduce,
    "avg": np.add.reduce,
    "product": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}


def reduced(call: Call, offset: int = 0) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """Make one period of the reduction over all ranks' inputs, from element `offset` on."""
    inputs = np.stack([contribution(call, rank, offset) for rank in range(call.world_size)])
    total = _REDUCE[call.reduce_op](inputs)
    if call.reduce_op != "avg":
        return total
    return total / call.world_size if call.dtype in FLOAT_TYPES else total // call.world_size
