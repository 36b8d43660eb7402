"""What a collective is to the benchmark: four hooks and a flag, one `Case` each.

    layout        how many elements go in and come out
    expectation   what must stand in a rank's result, from the oracle
    busbw_factor  what algbw is multiplied by to compare different rank counts
    prepare       the call itself, bound to a contender and its buffers

A new collective is a new entry of `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hccl_py.bench.collective.oracle import ITEM_SIZES, Call, Piece, contribution, reduced

if TYPE_CHECKING:
    from hccl_py.bench.collective.contender import Buffers, Contender, Timed


@dataclass(frozen=True)
class Layout:
    """Elements of a rank's input and of its output; no output: the call works in place."""

    input_count: int
    output_count: int


@dataclass(frozen=True)
class Case:
    """The four hooks; `n` is the world size, `count` the elements of one rank's block."""

    layout: Callable[[int, int], Layout]
    expectation: Callable[[Call, int], list[Piece]]
    busbw_factor: Callable[[int], float]
    prepare: Callable[[Contender, Call, Buffers], Timed]
    reduces: bool = False

    def count(self, size: int, dtype: str, n: int) -> int:
        """Elements of one rank's block for a size in bytes: rounded down, at least one."""
        layout = self.layout(1, n)
        blocks = max(layout.input_count, layout.output_count)
        return max(1, size // (ITEM_SIZES[dtype] * blocks)) if blocks else 0

    def num_bytes(self, count: int, dtype: str, n: int) -> int:
        """Bytes of a rank's larger buffer."""
        layout = self.layout(count, n)
        return max(layout.input_count, layout.output_count) * ITEM_SIZES[dtype]


def _in_place(count: int, n: int) -> Layout:
    return Layout(count, 0)


def _one_to_all(count: int, n: int) -> Layout:
    return Layout(count, n * count)


def _all_to_one(count: int, n: int) -> Layout:
    return Layout(n * count, count)


def _all_to_all(count: int, n: int) -> Layout:
    return Layout(n * count, n * count)


def _one_to_one(count: int, n: int) -> Layout:
    return Layout(count, count)


def _nothing(count: int, n: int) -> Layout:
    return Layout(0, 0)


def _expect_every_block(call: Call, rank: int) -> list[Piece]:
    return [Piece(call.count, contribution(call, peer)) for peer in range(call.world_size)]


def _expect_transposed(call: Call, rank: int) -> list[Piece]:
    offset = rank * call.count
    return [Piece(call.count, contribution(call, peer, offset)) for peer in range(call.world_size)]


def _at_root(expect: Callable[[Call, int], list[Piece]]) -> Callable[[Call, int], list[Piece]]:
    """Expect nothing of the other ranks: their buffers are unspecified."""
    return lambda call, rank: expect(call, rank) if rank == call.root else []


def _one(n: int) -> float:
    return 1.0


def _share_of_others(n: int) -> float:
    return (n - 1) / n


CASES: dict[str, Case] = {
    "all_reduce": Case(
        layout=_in_place,
        expectation=lambda call, rank: [Piece(call.count, reduced(call))],
        busbw_factor=lambda n: 2 * (n - 1) / n,
        prepare=lambda by, call, at: by.all_reduce(at.input, call.reduce_op),
        reduces=True,
    ),
    "broadcast": Case(
        layout=_in_place,
        expectation=lambda call, rank: [Piece(call.count, contribution(call, call.root))],
        busbw_factor=_one,
        prepare=lambda by, call, at: by.broadcast(at.input, call.root),
    ),
    "reduce": Case(
        layout=_in_place,
        expectation=_at_root(lambda call, rank: [Piece(call.count, reduced(call))]),
        busbw_factor=_one,
        prepare=lambda by, call, at: by.reduce(at.input, call.root, call.reduce_op),
        reduces=True,
    ),
    "all_gather": Case(
        layout=_one_to_all,
        expectation=_expect_every_block,
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at: by.all_gather(at.output, at.input),
    ),
    "reduce_scatter": Case(
        layout=_all_to_one,
        expectation=lambda call, rank: [Piece(call.count, reduced(call, rank * call.count))],
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at: by.reduce_scatter(at.output, at.input, call.reduce_op),
        reduces=True,
    ),
    "all_to_all": Case(
        layout=_all_to_all,
        expectation=_expect_transposed,
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at: by.all_to_all(at.output, at.input),
    ),
    "gather": Case(
        layout=_one_to_all,
        expectation=_at_root(_expect_every_block),
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at: by.gather(at.output, at.input, call.root),
    ),
    "scatter": Case(
        layout=_all_to_one,
        expectation=lambda call, rank: [
            Piece(call.count, contribution(call, call.root, rank * call.count))
        ],
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at: by.scatter(at.output, at.input, call.root),
    ),
    # Every rank sends to the next one and receives from the one before, at once.
    "send_recv": Case(
        layout=_one_to_one,
        expectation=lambda call, rank: [
            Piece(call.count, contribution(call, (rank - 1) % call.world_size))
        ],
        busbw_factor=_one,
        prepare=lambda by, call, at: by.send_recv(at.output, at.input),
    ),
    # Its check is one of time, not of data: see measure.check.
    "barrier": Case(
        layout=_nothing,
        expectation=lambda call, rank: [],
        busbw_factor=lambda n: 0.0,
        prepare=lambda by, call, at: by.barrier(),
    ),
}
