"""Every algorithm of the table through the real engine: what `verify` proved, the bytes confirm."""

from collections.abc import Iterator

import numpy as np
import pytest
from oracle import KINDS, Collective
from placed_calls import PlacedCall
from thread_ranks import ThreadRanks
from tiers import by_night

from hccl_py import Communicator, MismatchError
from hccl_py.algorithms.table import ALGORITHMS, names_for
from hccl_py.plan.contracts import COLLECTIVES

MORE = ("a", "aaaabbb", "aaaab", "aabbccdd")
LAYOUTS = ("aa", "ab", "aaa", "abbab", "abc", *by_night("calls", *MORE))
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


def test_every_algorithm_gives_numpys_result(ranks: ThreadRanks, chosen: str) -> None:
    """All collectives with the algorithms of one run, at several sizes."""
    n = ranks.world_size
    kinds = [kind for kind in KINDS[:6] if chosen in RUNS[: len(names_for(kind))]]  # new ones
    # An algorithm that takes only equal blocks leaves uneven ones to another.
    every = [Collective(kind, "int64", None, n) for kind in ("all_gather", "all_to_all")]
    for count in SIZES:
        every += [Collective(kind, "int64", count, n, root=count % n) for kind in kinds]

    floats = [Collective("all_reduce", "float32", 50_001, n)] if "all_reduce" in kinds else []

    def all_collectives(comm: Communicator) -> list[bytes]:
        calls = []
        for one in (*every, *floats):
            shape = "apart" if one.count is not None else "lists"
            call = PlacedCall(one, comm.rank, shape)
            call.run(comm)
            call.check()
            calls.append(call)
        comm.barrier()
        return [call.outputs for call in calls[len(every) :]]

    first, *others = ranks.run(all_collectives)
    assert all(other == first for other in others), "floats differ between ranks"


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
