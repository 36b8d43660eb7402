"""Averages whose sum leaves the range of their type, on every algorithm and provider.

The oracle is numpy in long double.
"""

from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from guarded import Guarded
from oracle import EPSILON, FLOATS, Array
from thread_ranks import ThreadRanks
from tiers import by_night

from hccl_py import Communicator, ReduceOp
from hccl_py.algorithms.table import names_for
from hccl_py.fingerprint import REDUCING

LARGEST = {
    "float16": 65504.0,
    "bfloat16": float(torch.finfo(torch.bfloat16).max),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
MORE = ("ab", "aaa", "abc", "aabbb", "abcde", "aaaaaaa", "aabbccdd")
LAYOUTS = ("aab", *by_night("attacks", *MORE))
# An odd count, and one of several tiles.
SIZES = (7, 20_011)


@lru_cache
def extremes(rank: int, count: int, dtype: str) -> Array:
    """Return what a rank brings: in each element a case, or noise near the largest number."""
    largest, smallest, sign = LARGEST[dtype], SMALLEST[dtype], -1 if rank % 2 else 1
    cases = [
        largest,
        sign * largest,
        -largest if rank == 0 else largest / 2,
        largest if rank == 0 else smallest,
        smallest,
        smallest * rank,
        -largest / (rank + 1),
        np.inf if rank == 0 else largest,
        np.nan if rank == 0 else largest,
        np.inf if rank == 0 else -np.inf,
        0.0,
        1.0 + rank,
    ]
    random = np.random.default_rng(rank)
    numbers = largest * random.uniform(-1, 1, count)
    places = random.permutation(count)[: count // 2]
    numbers[places] = smallest * random.integers(-9, 9, len(places))
    where = np.arange(count) % 97 < len(cases)
    numbers[where] = np.resize(cases, 97)[: len(cases)][np.arange(count)[where] % 97]
    if dtype == "bfloat16":
        return np.asarray(torch.from_numpy(numbers).bfloat16().double().numpy())
    with np.errstate(over="ignore"):
        return numbers.astype(dtype).astype(np.float64)


def assert_averages(got: Array, inputs: list[Array], dtype: str) -> None:
    """Compare with the averages; each may be off by two roundings of a partial sum per rank.

    Partial sums are scaled down, so those of denormals are rounded to multiples of the smallest.
    """
    exact = np.stack(inputs).astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        expected = exact.mean(axis=0)
        error = np.abs(got.astype(np.longdouble) - expected)
        bound = EPSILON[dtype] * np.abs(exact).sum(axis=0) + 2 * len(inputs) * SMALLEST[dtype]
    numbers = np.isfinite(expected)
    np.testing.assert_array_equal(got[~numbers], expected[~numbers].astype(np.float64))
    assert (error[numbers] <= bound[numbers]).all()


RUNS = [
    ",".join(f"{name}={names_for(name)[run % len(names_for(name))]}" for name in sorted(REDUCING))
    for run in range(len(names_for("all_reduce")))
]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HCCL_ALGORITHM", request.param)
    return str(request.param)


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_average_whose_sum_overflows_equals_numpy(nodes: str, run: str) -> None:
    n = len(nodes)
    news = [name for name in REDUCING if run in RUNS[: len(names_for(name))]]

    def average(comm: Communicator) -> dict[tuple[str, int], bytes]:
        everywhere = {}
        for dtype, count in product(FLOATS, SIZES):
            inputs = [extremes(rank, count * n, dtype) for rank in range(n)]
            if "all_reduce" in news:
                data = Guarded(inputs[comm.rank], dtype)
                comm.all_reduce(data.buffer, ReduceOp.AVG)
                assert_averages(data.values, inputs, dtype)
                everywhere[dtype, count] = data.bytes
            if "reduce" in news:
                rooted = Guarded(inputs[comm.rank], dtype)
                comm.reduce(rooted.buffer, count % n, ReduceOp.AVG)
                if comm.rank == count % n:
                    assert_averages(rooted.values, inputs, dtype)
                else:
                    np.testing.assert_array_equal(rooted.values.astype(float), inputs[comm.rank])
            if "reduce_scatter" in news:
                block, whole = Guarded(np.zeros(count), dtype), Guarded(inputs[comm.rank], dtype)
                comm.reduce_scatter(block.buffer, whole.buffer, ReduceOp.AVG)
                own = slice(comm.rank * count, (comm.rank + 1) * count)
                assert_averages(block.values, [each[own] for each in inputs], dtype)
        return everywhere

    with ThreadRanks(nodes) as ranks:
        first, *others = ranks.run(average)
    assert all(other == first for other in others)


def test_average_of_denormals_is_exact() -> None:
    """No bit of a small number is lost where no sum overflows, in another tile than one does."""

    def average(comm: Communicator) -> None:
        n, count = comm.world_size, 1 << 18
        for dtype in FLOATS:
            units = [np.random.default_rng(rank).integers(-99, 99, count) for rank in range(n)]
            inputs = SMALLEST[dtype] * np.stack(units)
            inputs[:, -9:] = LARGEST[dtype]
            data = Guarded(inputs[comm.rank], dtype)
            comm.all_reduce(data.buffer, ReduceOp.AVG)
            got, half = data.values.astype(float), slice(0, count // 2)
            exact = np.round(np.sum(units, axis=0) / n)
            np.testing.assert_array_equal(got[half] / SMALLEST[dtype], exact[half])
            np.testing.assert_array_equal(got[-9:], LARGEST[dtype])

    with ThreadRanks("aabb") as ranks:
        ranks.run(average)


def test_average_of_large_complex_numbers() -> None:
    largest = LARGEST["float32"]

    def average(comm: Communicator) -> None:
        data = np.full(99, largest * (1 - 1j), np.complex64)
        comm.all_reduce(data, ReduceOp.AVG)
        np.testing.assert_array_equal(data, np.complex64(largest * (1 - 1j)))

    with ThreadRanks("aab") as ranks:
        ranks.run(average)


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_average_of_large_numbers_compressed(compression: str) -> None:
    largest = LARGEST["float32"] * 0.9

    def average(comm: Communicator) -> bytes:
        data = np.full(50_000, largest, np.float32)
        comm.all_reduce(data, ReduceOp.AVG, compression=compression)
        np.testing.assert_allclose(data, largest, rtol=2**-7)
        return data.tobytes()

    for nodes in ("abcd", "aabb"):
        with ThreadRanks(nodes) as ranks:
            assert len(set(ranks.run(average))) == 1
