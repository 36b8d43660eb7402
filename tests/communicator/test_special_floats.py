"""NaN, infinities, denormals and overflow: as IEEE says, on every float type, layout and size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from guarded import Guarded
from oracle import FLOATS, Array
from thread_ranks import ThreadRanks

from hccl_py import Communicator, ReduceOp

FINFO = {name: torch.finfo(getattr(torch, name)) for name in FLOATS}
LAYOUTS = (
    "aab",
    *(
        pytest.param(nodes, marks=pytest.mark.nightly("attacks"))
        for nodes in ("aa", "abc", "aabbb")
    ),
)
SIZES = (1, 19, 20_011, 300_007)


def cases(op: ReduceOp, dtype: str, n: int) -> list[tuple[list[float], float]]:
    """Return (what the ranks bring, the result in any order); rank 0's values move to all ranks."""
    largest, inf, nan = FINFO[dtype].max, np.inf, np.nan
    smallest = FINFO[dtype].tiny * FINFO[dtype].eps
    neutral = {ReduceOp.SUM: 0.0, ReduceOp.PRODUCT: 1.0, ReduceOp.MIN: inf, ReduceOp.MAX: -inf}[op]
    one = [smallest, -smallest, 3 * smallest, largest, -largest, inf, -inf, nan]
    pairs = {
        ReduceOp.SUM: [
            (inf, -inf, nan),
            (largest, largest, inf),
            (smallest, smallest, 2 * smallest),
        ],
        ReduceOp.PRODUCT: [(inf, 0.0, nan), (largest, largest, inf), (smallest, smallest, 0.0)],
        ReduceOp.MIN: [(nan, 1.0, nan), (smallest, 0.0, 0.0), (-smallest, 0.0, -smallest)],
        ReduceOp.MAX: [(nan, 1.0, nan), (smallest, 0.0, smallest), (-inf, -largest, -largest)],
    }[op]
    rest = [neutral] * (n - 1)
    found = [([value, *rest], value) for value in one]
    return found + [([first, second, *rest[1:]], result) for first, second, result in pairs]


def filled(op: ReduceOp, dtype: str, n: int, count: int) -> tuple[Array, Array]:
    """Return every rank's values and the result: case after case, each rotated over the ranks."""
    listed = cases(op, dtype, n)
    turned = [(np.roll(values, turn), result) for values, result in listed for turn in range(n)]
    places = np.random.default_rng(count).integers(0, len(turned), count)
    given = np.stack([values for values, _ in turned], axis=1)
    return given[:, places], np.array([result for _, result in turned])[places]


@pytest.mark.parametrize("nodes", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_floats_are_reduced_as_ieee_says(dtype: str, nodes: str) -> None:
    def reduce(comm: Communicator) -> None:
        n, rank = comm.world_size, comm.rank
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
            for count in SIZES:
                given, expected = filled(op, dtype, n, count)
                whole = Guarded(given[rank], dtype)
                comm.all_reduce(whole.buffer, op)
                np.testing.assert_array_equal(whole.values.astype(float), expected, str(op))
                one = Guarded(given[rank], dtype)
                comm.reduce(one.buffer, count % n, op)
                if rank == count % n:
                    np.testing.assert_array_equal(one.values.astype(float), expected, str(op))

    with ThreadRanks(nodes) as ranks:
        ranks.run(reduce)
