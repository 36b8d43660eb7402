"""Buffers of one call that share memory: what may, does; all else is refused before it is sent.

Every collective, whole buffers and lists, of numpy and torch, first calls and known ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks, counters, ranks_on

from hccl_py import Communicator, InvalidArgumentError, capture, group, premul_sum

ranks = ranks_on("aaa", "aab")
COUNT = 5

Call = Callable[[Communicator, Any], None]
"""Makes a call on blocks of COUNT elements that lie in the buffer."""


def at(buffer: Any, begin: int, count: int = COUNT) -> Any:
    return buffer[begin : begin + count]


def blocks(buffer: Any, n: int, begin: int = 0, step: int = COUNT) -> list[Any]:
    return [at(buffer, begin + rank * step) for rank in range(n)]


def _to_others(comm: Communicator) -> int:
    return (comm.rank + 1) % comm.world_size * COUNT


# Which argument shares memory with which other one, and how.
OVERLAPS: dict[str, tuple[str, str, Call]] = {
    "all_gather of an input that begins in its own block": (
        "output",
        "input",
        lambda c, b: c.all_gather(at(b, 0, 3 * COUNT), at(b, c.rank * COUNT + 1)),
    ),
    "all_gather into a list, of the block of another rank": (
        r"output\[.\]",
        "input",
        lambda c, b: c.all_gather(blocks(b, 3), at(b, _to_others(c))),
    ),
    "all_gather into a list whose ends overlap": (
        r"output\[0\]",
        r"output\[1\]",
        lambda c, b: c.all_gather(blocks(b, 3, step=COUNT - 1), at(b, 4 * COUNT)),
    ),
    "all_gather into uneven blocks that overlap": (
        r"output\[0\]",
        r"output\[2\]",
        lambda c, b: c.all_gather([at(b, 0, 1), at(b, 9, 2), at(b, 0, 3)], at(b, 20, c.rank + 1)),
    ),
    "reduce_scatter of a list into another block": (
        "output",
        r"input\[.\]",
        lambda c, b: c.reduce_scatter(at(b, _to_others(c)), blocks(b, 3)),
    ),
    "reduce_scatter of products into another block": (
        "output",
        "input",
        lambda c, b: c.reduce_scatter(at(b, _to_others(c)), at(b, 0, 3 * COUNT), premul_sum(2.0)),
    ),
    "all_to_all of blocks in another order": (
        r"output\[.\]",
        r"input\[.\]",
        lambda c, b: c.all_to_all(blocks(b, 3), blocks(b, 3)[::-1]),
    ),
    "gather of the block of another rank": (
        "output",
        "input",
        lambda c, b: c.gather(at(b, 0, 3 * COUNT), at(b, _to_others(c)), c.rank),
    ),
    "scatter into the block of another rank": (
        "output",
        "input",
        lambda c, b: c.scatter(at(b, _to_others(c)), at(b, 0, 3 * COUNT), c.rank),
    ),
    "all_reduce into a shifted output": (
        "output",
        "data",
        lambda c, b: c.all_reduce(at(b, 0), output=at(b, 1)),
    ),
    "reduce into a shifted output": (
        "output",
        "data",
        lambda c, b: c.reduce(at(b, 0), c.rank, output=at(b, 1)),
    ),
    "broadcast into a shifted output": (
        "output",
        "data",
        lambda c, b: c.broadcast(at(b, 0), c.rank, output=at(b, 1)),
    ),
}


def _apart(comm: Communicator, make: Callable[[int], Any]) -> None:
    """Make known all calls of these shapes."""
    one, whole, n = make(COUNT), make(3 * COUNT), comm.world_size
    comm.all_gather(whole, one)
    comm.all_gather([make(COUNT) for _ in range(n)], one)
    comm.reduce_scatter(one, whole)
    comm.reduce_scatter(one, [make(COUNT) for _ in range(n)])
    comm.all_to_all(whole, make(3 * COUNT))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("kind", OVERLAPS)
def test_overlap_is_refused_and_both_arguments_are_named(
    ranks: ThreadRanks, kind: str, known: bool, make: Callable[[int], Any]
) -> None:
    one, other, call = OVERLAPS[kind]

    def refuse(comm: Communicator) -> float:
        if known:
            _apart(comm, make)
        before = counters(comm)
        with pytest.raises(InvalidArgumentError, match=f"{one}: .*{other}"):
            call(comm, make(50))
        assert known or counters(comm) == before, "nothing was sent"
        total = make(1) + comm.rank
        comm.all_reduce(total)
        return float(total[0])

    assert ranks.run(refuse) == [3.0] * 3


def test_overlap_is_refused_in_a_group_where_the_call_is_made(ranks: ThreadRanks) -> None:
    def refuse(comm: Communicator) -> None:
        before = counters(comm)
        with pytest.raises(InvalidArgumentError, match=r"output\[0\].*output\[1\]"), group():
            comm.all_reduce(np.ones(1))
            comm.all_gather([np.zeros(2)] * 3, np.ones(2))
            raise AssertionError("the call was taken")
        assert counters(comm) == before

    ranks.run(refuse)


def test_overlap_is_refused_in_a_capture(ranks: ThreadRanks) -> None:
    def refuse(comm: Communicator) -> None:
        buffer = np.zeros(50)
        with pytest.raises(InvalidArgumentError, match="output.*input"), capture():
            comm.all_gather(at(buffer, 0, 3 * COUNT), at(buffer, 1))

    ranks.run(refuse)


def test_all_to_all_of_one_memory_cut_unevenly_gives_the_values_of_apart(
    ranks: ThreadRanks,
) -> None:
    n = ranks.world_size

    def in_place(comm: Communicator) -> list[float]:
        me = comm.rank
        sent, got = [1 + me] * n, [1 + peer for peer in range(n)]
        buffer = np.full(12, float(me))
        cut = [np.split(buffer[: sum(sizes)], np.cumsum(sizes)[:-1]) for sizes in (got, sent)]
        if sum(got) != sum(sent):
            cut = [cut[0], [np.full(1 + me, float(me)) for _ in range(n)]]
        comm.all_to_all(*cut)
        return buffer[: sum(got)].tolist()

    assert ranks.run(in_place) == [[0.0, 1.0, 1.0, 2.0, 2.0, 2.0]] * n


def test_inputs_and_empty_blocks_may_share_memory(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def share(comm: Communicator) -> None:
        one, got = np.full(2, 1.0 + comm.rank), np.zeros(2 * n)
        comm.all_to_all(got, [one] * n)
        assert got.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        output = np.zeros(2)
        comm.reduce_scatter(output, [one] * n)
        assert output.tolist() == [6.0, 6.0]
        comm.all_gather([one[:0]] * n, one[1:1])
        comm.all_to_all([one[:0]] * n, [one[:0]] * n)

    ranks.run(share)
