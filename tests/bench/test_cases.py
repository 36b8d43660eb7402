"""Every case against a second, naive implementation on whole arrays."""

import numpy as np
import numpy.typing as npt
import pytest

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.oracle import PERIOD, Call, contribution

Array = npt.NDArray[np.int64]
_WORLD_SIZES = (2, 3, 8)
_COUNTS = (1, 7, PERIOD, 2 * PERIOD + 3)


def _inputs(call: Call, length: int) -> Array:
    return np.stack([np.resize(contribution(call, r), length) for r in range(call.world_size)])


def _naive(op: str, call: Call, rank: int) -> Array | None:
    """What must stand on a rank; None: nothing is promised."""
    n, count = call.world_size, call.count
    whole = _inputs(call, count)
    blocks = _inputs(call, n * count).reshape(n, n, count)
    results: dict[str, Array | None] = {
        "all_reduce": whole.sum(axis=0),
        "broadcast": whole[call.root],
        "reduce": whole.sum(axis=0) if rank == call.root else None,
        "all_gather": whole.reshape(-1),
        "reduce_scatter": blocks.sum(axis=0)[rank],
        "all_to_all": blocks[:, rank].reshape(-1),
        "gather": whole.reshape(-1) if rank == call.root else None,
        "scatter": blocks[call.root][rank],
        "send_recv": whole[rank - 1],
        "ping_pong": whole[rank ^ 1] if rank ^ 1 < n else None,
        "barrier": None,
    }
    return results[op]


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("n", _WORLD_SIZES)
def test_expectation_equals_naive_result_on_every_rank(op: str, n: int) -> None:
    for count in _COUNTS:
        pairs = tuple((a, a + 1) for a in range(0, n - 1, 2)) if op == "ping_pong" else ()
        reduce_op = "sum" if CASES[op].reduces else "none"
        call = Call(op, n, n - 1, reduce_op, "int64", count, pairs=pairs)
        for rank in range(n):
            pieces = CASES[op].expectation(call, rank)
            naive = _naive(op, call, rank)
            if naive is None:
                assert pieces == []
                continue
            built = np.concatenate([np.resize(piece.pattern, piece.count) for piece in pieces])
            np.testing.assert_array_equal(built, naive)


@pytest.mark.parametrize(
    ("op", "n", "size", "count", "num_bytes"),
    [
        ("all_reduce", 3, 1001, 250, 1000),
        ("all_reduce", 8, 1, 1, 4),
        ("all_gather", 3, 1001, 83, 996),
        ("reduce_scatter", 8, 4, 1, 32),
        ("all_to_all", 4, 65536, 4096, 65536),
        ("scatter", 4, 64, 4, 64),
        ("send_recv", 4, 64, 16, 64),
        ("barrier", 4, 0, 0, 0),
    ],
)
def test_count_of_size_rounds_down_to_whole_blocks(
    op: str, n: int, size: int, count: int, num_bytes: int
) -> None:
    assert CASES[op].count(size, "float32", n) == count
    assert CASES[op].num_bytes(count, "float32", n) == num_bytes
