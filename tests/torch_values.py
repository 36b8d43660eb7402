"""Small numbers in torch tensors and numpy's answer to what a collective makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

INTEGERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
EVERY_DTYPE = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, *FLOAT8]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (0, 4)]
FEW_DTYPES = [torch.float32, torch.int64, torch.bfloat16, torch.bool]
CASES = [
    *((dtype, (7,)) for dtype in EVERY_DTYPE),
    *((dtype, shape) for dtype in FEW_DTYPES for shape in SHAPES),
]
"""Element types and shapes: every type once, every shape with some."""

Reduction = Callable[[np.ndarray], np.ndarray]
"""From the stacked values of all ranks to the result."""

ARITHMETIC: dict[dist.ReduceOp.RedOpType, Reduction] = {
    dist.ReduceOp.SUM: lambda stack: stack.sum(0),
    dist.ReduceOp.PRODUCT: lambda stack: stack.prod(0),
    dist.ReduceOp.MIN: lambda stack: stack.min(0),
    dist.ReduceOp.MAX: lambda stack: stack.max(0),
}
BITWISE: dict[dist.ReduceOp.RedOpType, Reduction] = {
    dist.ReduceOp.BAND: np.bitwise_and.reduce,
    dist.ReduceOp.BOR: np.bitwise_or.reduce,
    dist.ReduceOp.BXOR: np.bitwise_xor.reduce,
}


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> np.ndarray:
    """Return what `rank` contributes: exact in every dtype, as are products of four of them."""
    random = np.random.default_rng(100 * seed + rank)
    if dtype is torch.bool:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_complex:
        return random.integers(-3, 4, shape) + 1j * random.integers(-3, 4, shape)
    return random.integers(-3 if dtype.is_signed else 0, 4, shape)


def tensor_of(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Return `array` as a contiguous tensor of `dtype`."""
    # Through float64 or complex128: all our values are exact there, and torch can round to all.
    wide = torch.complex128 if np.iscomplexobj(array) else torch.float64
    return torch.tensor(np.asarray(array).tolist(), dtype=wide).reshape(array.shape).to(dtype)


def stack_of(
    world_size: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0
) -> np.ndarray:
    """Return the values of all ranks, stacked."""
    return np.stack([values(rank, shape, dtype, seed) for rank in range(world_size)])


def mean_of(stack: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the average; integers are divided truncating towards zero."""
    mean = stack.sum(0) / len(stack)
    return mean if dtype.is_floating_point or dtype.is_complex else np.trunc(mean)


def same(tensor: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Fail unless both have the same shape, dtype and values."""
    assert tensor.shape == expected.shape, (what, tensor.shape, expected.shape)
    assert tensor.dtype == expected.dtype, (what, tensor.dtype, expected.dtype)
    # Not every dtype knows how to compare. Not by bits: numpy's zero has no sign.
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    assert torch.equal(tensor.detach().to(wide), expected.detach().to(wide)), (
        what,
        tensor,
        expected,
    )
