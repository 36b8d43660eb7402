"""Every algorithm of the table through the real engine: what `verify` proved, the bytes confirm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from guarded import Array
from thread_ranks import ThreadRanks

from hccl_py import Communicator, MismatchError
from hccl_py.algorithms.table import ALGORITHMS, names_for
from hccl_py.plan.contracts import COLLECTIVES

LAYOUTS = (
    *("a", "aa", "ab", "aaa", "abbab", "abc", "aaaabbb"),
    *(pytest.param(nodes, marks=pytest.mark.nightly("calls")) for nodes in ("aaaab", "aabbccdd")),
)
SIZES = (0, 1, 5, 3_001, 90_001)

# Run i takes the i-th algorithm of every collective, so that the longest list sets the number.
RUNS = [
    ",".join(
        f"{collective}={names_for(collective)[run % len(names_for(collective))]}"
        for collective in COLLECTIVES
    )
    for run in range(max(len(names_for(collective)) for collective in COLLECTIVES))
]


def test_runs_cover_the_whole_table() -> None:
    covered = {tuple(item.split("=")) for run in RUNS for item in run.split(",")}
    assert covered == set(ALGORITHMS)


@pytest.fixture(params=RUNS)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HCCL_ALGORITHM", request.param)
    return str(request.param)


@pytest.fixture(params=LAYOUTS)
def ranks(request: pytest.FixtureRequest, chosen: str) -> Iterator[ThreadRanks]:
    with ThreadRanks(request.param) as ranks:
        yield ranks


def _numbers(rank: int, count: int) -> Array:
    # Random: a constant or regular pattern would forgive chunks that land in each other's place.
    return np.random.default_rng(rank).integers(-(2**31), 2**31, count, np.int64)


def test_every_algorithm_gives_numpys_result(ranks: ThreadRanks) -> None:
    """All collectives with the algorithms of one run, at several sizes."""
    n = ranks.world_size
    inputs = [_numbers(rank, SIZES[-1] * n) for rank in range(n)]
    totals = np.sum(inputs, axis=0)

    def all_collectives(comm: Communicator) -> None:
        me, mine = comm.rank, inputs[comm.rank]
        for count in SIZES:
            root = count % n
            data = mine[:count].copy()
            comm.all_reduce(data)
            np.testing.assert_array_equal(data, totals[:count], "all_reduce")
            data = mine[:count].copy()
            comm.reduce(data, root)
            expected = totals if me == root else mine
            np.testing.assert_array_equal(data, expected[:count], "reduce")
            data = mine[:count].copy()
            comm.broadcast(data, root)
            np.testing.assert_array_equal(data, inputs[root][:count], "broadcast")
            gathered = np.zeros((n, count), np.int64)
            comm.all_gather(gathered, mine[:count])
            expected = np.stack([one[:count] for one in inputs])
            np.testing.assert_array_equal(gathered, expected, "all_gather")
            part = np.zeros(count, np.int64)
            comm.reduce_scatter(part, mine[: n * count])
            np.testing.assert_array_equal(
                part, totals[me * count : (me + 1) * count], "reduce_scatter"
            )
            exchanged = np.zeros((n, count), np.int64)
            comm.all_to_all(exchanged, mine[: n * count])
            expected = np.stack([one[me * count : (me + 1) * count] for one in inputs])
            np.testing.assert_array_equal(exchanged, expected, "all_to_all")
            comm.barrier()
        # An algorithm that takes only equal blocks leaves these to another.
        uneven = [np.zeros(rank, np.int64) for rank in range(n)]
        comm.all_gather(uneven, mine[:me])
        expected = np.concatenate([inputs[rank][:rank] for rank in range(n)])
        np.testing.assert_array_equal(np.concatenate(uneven), expected, "all_gather, uneven")
        received = [np.zeros(me, np.int64) for _ in range(n)]
        comm.all_to_all(received, [mine[:rank] for rank in range(n)])
        np.testing.assert_array_equal(received, [one[:me] for one in inputs], "all_to_all, uneven")

    ranks.run(all_collectives)


def test_floats_are_the_same_bits_on_all_ranks(ranks: ThreadRanks) -> None:
    def all_reduce(comm: Communicator) -> bytes:
        data = np.random.default_rng(comm.rank).normal(size=50_001).astype(np.float32)
        comm.all_reduce(data)
        return data.tobytes()

    assert len(set(ranks.run(all_reduce))) == 1


@pytest.mark.parametrize("algorithm", ["bruck", "leader"])
def test_list_beside_one_buffer_is_a_mismatch_where_blocks_must_be_equal(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(comm: Communicator) -> None:
        output, input = np.zeros(3), np.ones(3)
        split = list if comm.rank == 1 else np.asarray
        comm.all_to_all(split(output.reshape(3, 1)), split(input.reshape(3, 1)))

    with ThreadRanks("aab") as ranks:
        ranks.run(exchange)
    monkeypatch.setenv("HCCL_ALGORITHM", f"all_to_all={algorithm}")
    with ThreadRanks("aab") as ranks:
        errors = ranks.failures(exchange)
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert "all_to_all(float64[3])" in str(errors[0])
    assert "all_to_all(float64)" in str(errors[0])
