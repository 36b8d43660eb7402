"""Splitting by colour, as users of MPI and NCCL know it."""

from typing import Any

import numpy as np
import pytest
from thread_ranks import ThreadRanks, ranks_on

import hccl_py
from hccl_py import Communicator, InvalidArgumentError

ranks = ranks_on("aaabb")


def part(comm: Communicator, color: int | None, key: int | None = None) -> tuple[int, list[int]]:
    """Return this rank's rank in its part, and the old ranks of it, in order."""
    made = comm.split(color, key)
    if made is None:
        return (-1, [])
    with made:
        old_ranks = np.empty(made.world_size, np.int64)
        made.all_gather(old_ranks, np.array([comm.rank]))
        return made.rank, old_ranks.tolist()


@pytest.mark.parametrize(
    ("colors", "keys", "parts"),
    [
        ([0, 1, 0, 1, 0], None, [[0, 2, 4], [1, 3]]),
        ([3] * 5, [5, -1, 5, np.int32(-7), 0], [[3, 1, 4, 0, 2]]),  # by key, then by rank
        ([None, -9, -9, None, -9], None, [[1, 2, 4]]),
        ([None] * 5, None, []),
    ],
)
def test_split_makes_one_communicator_for_every_color(
    ranks: ThreadRanks, colors: list[int | None], keys: list[Any] | None, parts: list[list[int]]
) -> None:
    expected = [(-1, list[int]())] * 5
    for members in parts:
        for new, old in enumerate(members):
            expected[old] = new, members
    key_of = keys or [None] * 5
    assert ranks.run(lambda comm: part(comm, colors[comm.rank], key_of[comm.rank])) == expected


def test_split_again_and_of_a_part(ranks: ThreadRanks) -> None:
    def twice(comm: Communicator) -> list[tuple[int, list[int]]]:
        half = comm.split(comm.rank // 2)
        assert half is not None
        with half:
            return [part(comm, 0), part(half, 0, -half.rank)]

    assert [of_half[1] for _, of_half in ranks.run(twice)] == [[1, 0]] * 4 + [[0]]


@pytest.mark.parametrize("wrong", [{"color": "red"}, {"color": 1.5}, {"color": 0, "key": "a"}])
def test_split_refuses_what_is_no_number(ranks: ThreadRanks, wrong: dict[str, Any]) -> None:
    for error in ranks.failures(lambda comm: comm.split(**wrong)):
        assert isinstance(error, InvalidArgumentError)
        assert "expected a whole number" in str(error)


def test_split_inside_of_a_group_is_refused(ranks: ThreadRanks) -> None:
    def inside(comm: Communicator) -> None:
        with hccl_py.group():
            comm.split(0)

    for error in ranks.failures(inside):
        assert isinstance(error, InvalidArgumentError)
        assert "before or after the block" in str(error)
