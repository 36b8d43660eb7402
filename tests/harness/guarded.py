"""Buffers between guard bytes, in any element type, and numpy's answer to a reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hccl_py import ReduceOp

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCIBLE = (*FLOATS, *INTEGERS, "bool")
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}

_GUARD_BYTES = 72  # not a multiple of a cache line: buffers start anywhere
_GUARD = 0xA5

Array = np.ndarray[Any, np.dtype[Any]]


class Guarded:
    """A buffer of its own, with bytes on both sides that nobody may touch.

    Attributes:
        buffer: numpy array; torch tensor for bfloat16, which numpy lacks.
    """

    def __init__(self, values: Array, dtype: str, make: Callable[..., Array] = np.empty) -> None:
        item = torch.bfloat16.itemsize if dtype == "bfloat16" else np.dtype(dtype).itemsize
        num_bytes = values.size * item
        self._raw = make(num_bytes + 2 * _GUARD_BYTES, np.uint8)
        self._raw.fill(_GUARD)
        inside = self._raw[_GUARD_BYTES : _GUARD_BYTES + num_bytes]
        self.buffer: Any
        if dtype == "bfloat16":
            self.buffer = torch.from_numpy(inside).view(torch.bfloat16).reshape(values.shape)
            self.buffer.copy_(torch.from_numpy(values.astype(np.float32)))
        else:
            self.buffer = inside.view(dtype).reshape(values.shape)
            self.buffer[...] = values

    @property
    def bytes(self) -> bytes:
        """What is in the buffer; fails if something was written beside it."""
        for guard in (self._raw[:_GUARD_BYTES], self._raw[-_GUARD_BYTES:]):
            assert (guard == _GUARD).all(), "written outside of the buffer"
        return self._raw[_GUARD_BYTES:-_GUARD_BYTES].tobytes()

    @property
    def values(self) -> Array:
        """What is in the buffer, bfloat16 as float32; fails as `bytes` does."""
        assert self.bytes is not None
        if isinstance(self.buffer, torch.Tensor):
            return np.asarray(self.buffer.float().numpy())
        return np.array(self.buffer)


def contribution(rank: int, count: int, dtype: str) -> Array:
    """Return what `rank` brings: the same numbers for every call, as exact as `dtype` is."""
    random = np.random.default_rng(rank)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        # Sums and products of whole ranges wrap round, in numpy as in the engine.
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype, endpoint=True)
    signs = random.choice([-1.0, 1.0], count)
    numbers = signs * random.uniform(0.5, 1.5, count)
    if dtype == "bfloat16":
        return np.asarray(torch.from_numpy(numbers).bfloat16().float().numpy())
    return numbers.astype(dtype)


_REDUCTIONS: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.SUM: np.add.reduce,
    ReduceOp.AVG: np.add.reduce,
    ReduceOp.PRODUCT: np.multiply.reduce,
    ReduceOp.MIN: np.minimum.reduce,
    ReduceOp.MAX: np.maximum.reduce,
    ReduceOp.BAND: np.bitwise_and.reduce,
    ReduceOp.BOR: np.bitwise_or.reduce,
    ReduceOp.BXOR: np.bitwise_xor.reduce,
}


def ops_of(dtype: str) -> list[ReduceOp]:
    """List the operations that mean anything for the type."""
    without = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR} if dtype in FLOATS else set()
    return [op for op in ReduceOp if op not in without and (op, dtype) != (ReduceOp.AVG, "bool")]


def reduced(contributions: list[Array], dtype: str, op: ReduceOp) -> Array:
    """Reduce in numpy: integers with wrap-around, AVG truncating; floats in float64."""
    wide = np.float64 if dtype in FLOATS else np.dtype(dtype)
    result = _REDUCTIONS[op](np.stack(contributions).astype(wide), axis=0, dtype=wide)
    n = len(contributions)
    if op is not ReduceOp.AVG:
        return result
    if dtype in FLOATS:
        return result / n
    # Unsigned is never negative, and n must not turn it into float64.
    quotient, rest = np.divmod(result, np.dtype(dtype).type(n))
    return np.asarray(quotient + ((result < 0) & (rest != 0)), dtype)


def assert_reduced(got: Array, expected: Array, contributions: list[Array], dtype: str) -> None:
    """Compare exactly, or floats with one rounding of the largest partial result per rank."""
    if dtype not in FLOATS:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        return
    n = len(contributions)
    # A sum's partial results are at most n * 1.5, a product's 1.5 ** n.
    bound = np.maximum(np.abs(expected), 1.5 * n)
    error = np.abs(got.astype(np.float64) - expected)
    assert (error <= n * EPSILON[dtype] * bound).all(), error.max()
