"""The oracle: what numpy says that each rank must get from a collective.

    call = Collective("all_gather", "float32", 17, world_size=3)
    given = call.given(rank)        # blocks of elements that no other rank and no other place has
    call.check(rank, got)           # against call.expected(rank)

Integers and all moves are exact. Floats are reduced in float64; each rank may add one rounding of
the largest partial result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hccl_py import ReduceOp
from hccl_py.transport.types import EXACT

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
REDUCIBLE = (*FLOATS, *INTEGERS, "bool")
MOVABLE = (*REDUCIBLE, *COMPLEX, "datetime64[s]", "S3", "i4, f8")
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}
EPSILON |= {"complex64": 2**-23, "complex128": 2**-52}

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
KINDS += ("gather", "scatter", "exchange")
"""`exchange`: each rank sends to the next one."""
MOVING = tuple(kind for kind in KINDS if kind not in REDUCING)

Array = np.ndarray[Any, np.dtype[Any]]


def _as_bfloat16(numbers: Array) -> Array:
    """Round to what bfloat16 holds, as float32."""
    import torch  # numpy lacks the type; virtual machines that use others load no torch

    return np.asarray(torch.from_numpy(numbers).bfloat16().float().numpy())


@lru_cache(64)
def contribution(rank: int, count: int, dtype: str) -> Array:
    """Return what `rank` brings: the same numbers for every call, as exact as `dtype` is."""
    numbers = _numbers(rank, count, dtype)
    numbers.flags.writeable = False
    return numbers


def _numbers(rank: int, count: int, dtype: str) -> Array:
    random = np.random.default_rng(rank)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        # Sums and products of whole ranges wrap round, in numpy as in the engine.
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype, endpoint=True)
    if dtype not in FLOATS and dtype not in COMPLEX:  # is only moved: any bytes are good
        size = np.dtype(dtype).itemsize * count
        return random.integers(0, 256, size, np.uint8).view(dtype)
    signs = random.choice([-1.0, 1.0], count)
    numbers = signs * random.uniform(0.5, 1.5, count)
    if dtype in COMPLEX:
        return (numbers + 1j * random.uniform(0.5, 1.5, count)).astype(dtype)
    return _as_bfloat16(numbers) if dtype == "bfloat16" else numbers.astype(dtype)


_REDUCTIONS: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.SUM: np.add.reduce,
    ReduceOp.AVG: np.add.reduce,
    ReduceOp.EXACT_SUM: np.add.reduce,
    ReduceOp.EXACT_AVG: np.add.reduce,
    ReduceOp.PRODUCT: np.multiply.reduce,
    ReduceOp.MIN: np.minimum.reduce,
    ReduceOp.MAX: np.maximum.reduce,
    ReduceOp.BAND: np.bitwise_and.reduce,
    ReduceOp.BOR: np.bitwise_or.reduce,
    ReduceOp.BXOR: np.bitwise_xor.reduce,
}


def ops_of(dtype: str) -> list[ReduceOp]:
    """List the operations that mean anything for the type."""
    if dtype not in REDUCIBLE and dtype not in COMPLEX:
        return []
    if dtype in COMPLEX:
        return [ReduceOp.SUM, ReduceOp.AVG, *EXACT.values()]
    bitwise = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
    without = bitwise if dtype in FLOATS else set(EXACT.values())
    return [op for op in ReduceOp if op not in without and (op, dtype) != (ReduceOp.AVG, "bool")]


def reduced(contributions: Sequence[Array], dtype: str, op: ReduceOp) -> Array:
    """Reduce in numpy: integers with wrap-around, AVG truncating; floats in float64."""
    wide: Any = np.float64 if dtype in FLOATS else np.dtype(dtype)
    wide = np.complex128 if dtype in COMPLEX else wide
    result = _REDUCTIONS[op](np.stack(contributions).astype(wide), axis=0, dtype=wide)
    n = len(contributions)
    if op not in (ReduceOp.AVG, ReduceOp.EXACT_AVG):
        return result
    if dtype in EPSILON:
        return np.asarray(result / n)
    # Unsigned is never negative, and n must not turn it into float64.
    quotient, rest = np.divmod(result, np.dtype(dtype).type(n))
    return np.asarray(quotient + ((result < 0) & (rest != 0)), dtype)


def assert_reduced(got: Array, expected: Array, n: int, dtype: str, what: object = "") -> None:
    """Compare exactly, or floats with one rounding of the largest partial result per rank."""
    if dtype not in EPSILON:
        assert got.dtype == expected.dtype, what
        np.testing.assert_array_equal(got, expected, str(what))
        return
    # A sum's partial results are at most n * 1.5 in each part, a product's 1.5 ** n.
    bound = np.maximum(np.abs(expected), 1.5 * n)
    error = np.abs(got.astype(expected.dtype) - expected)
    assert got.shape == expected.shape and (error <= n * EPSILON[dtype] * bound).all(), what


def uneven(sender: int, receiver: int) -> int:
    """Return how much a rank has for another: nothing, one, several tiles of a long message, ..."""
    return (0, 1, 150_003, 13, 7)[(3 * sender + receiver) % 5]


@dataclass(frozen=True)
class Collective:
    """One call, the same on every rank.

    Attributes:
        kind: its method.
        count: elements of a block; None: blocks of uneven lengths, of a kind that takes lists.
        root: of a kind that has one.
    """

    kind: str
    dtype: str
    count: int | None
    world_size: int
    op: ReduceOp = ReduceOp.SUM
    root: int = 0

    @property
    def has_many_inputs(self) -> bool:
        """Whether a rank brings a block for each rank."""
        return self.kind in ("reduce_scatter", "all_to_all", "scatter")

    @property
    def has_many_outputs(self) -> bool:
        """Whether a rank gets a block of each rank."""
        return self.kind in ("all_gather", "all_to_all", "gather")

    def _length(self, sender: int, receiver: int) -> int:
        if self.count is not None:
            return self.count
        if self.kind == "all_to_all":
            return uneven(sender, receiver)
        return uneven(receiver if self.kind == "scatter" else sender, 0)

    @cached_property
    def _blocks(self) -> list[list[Array]]:
        """What each rank brings, by receiver."""
        every = []
        for sender in range(self.world_size):
            receivers = range(self.world_size) if self.has_many_inputs else range(1)
            lengths = [self._length(sender, receiver) for receiver in receivers]
            whole = contribution(sender, sum(lengths), self.dtype)
            every.append(np.split(whole, np.cumsum(lengths)[:-1]))
        return every

    def given(self, rank: int) -> list[Array]:
        """Return what `rank` brings, one block or one for each rank; [] if that is nothing."""
        return [] if self.kind == "scatter" and rank != self.root else self._blocks[rank]

    @cached_property
    def _total(self) -> list[Array]:
        columns = zip(*self._blocks, strict=True)
        return [reduced(column, self.dtype, self.op) for column in columns]

    def expected(self, rank: int) -> list[Array]:
        """Return what `rank` gets, one block or one of each rank; [] if that is nothing."""
        every, is_root = self._blocks, rank == self.root
        if self.kind == "broadcast":
            return every[self.root]
        if self.kind == "exchange":
            return every[rank - 1]
        if self.kind == "scatter":
            return [every[self.root][rank]]
        if self.kind == "all_to_all":
            return [blocks[rank] for blocks in every]
        if self.kind == "reduce_scatter":
            return [self._total[rank]]
        if self.kind in ("reduce", "gather") and not is_root:
            return []
        return self._total if self.kind in REDUCING else [blocks[0] for blocks in every]

    def check(self, rank: int, got: Sequence[Array], what: object = "") -> None:
        """Fail unless these blocks are what `rank` must get; bfloat16 comes as float32."""
        what = f"rank {rank}: {self} {what}"
        expected = self.expected(rank)
        assert len(got) == len(expected), what
        for one, right in zip(got, expected, strict=True):
            if self.kind in REDUCING:
                assert_reduced(one, right, self.world_size, self.dtype, what)
            else:
                assert one.dtype == right.dtype and one.tobytes() == right.tobytes(), what
