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
    import torch

    from hccl_py.bench.collective.contender import Buffers, Contender, Timed


@dataclass(frozen=True)
class Layout:
    """Elements of a rank's input and of its output; in place one is part of the other."""

    input_count: int
    output_count: int


@dataclass(frozen=True)
class Case:
    """The four hooks; `n` is the world size, `count` the elements of one rank's block.

    Attributes:
        reduces, has_root, has_data: what its calls take.
        places: whether it works out of place or in place; as torch calls it, first.
        messages: how many follow each other in one call; its time is divided by them.
    """

    layout: Callable[[int, int], Layout]
    expectation: Callable[[Call, int], list[Piece]]
    busbw_factor: Callable[[int], float]
    prepare: Callable[[Contender, Call, Buffers, int], Timed]
    reduces: bool = False
    has_root: bool = False
    has_data: bool = True
    places: tuple[str, ...] = ("out", "in")
    messages: int = 1

    def count(self, size: int, dtype: str, n: int) -> int:
        """Elements of one rank's block for a size in bytes: rounded down, at least one."""
        layout = self.layout(1, n)
        blocks = max(layout.input_count, layout.output_count)
        return max(1, size // (ITEM_SIZES[dtype] * blocks)) if blocks else 0

    def num_bytes(self, count: int, dtype: str, n: int) -> int:
        """Bytes of a rank's larger buffer."""
        layout = self.layout(count, n)
        return max(layout.input_count, layout.output_count) * ITEM_SIZES[dtype]


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


def _expect_neighbour(call: Call, rank: int) -> list[Piece]:
    """Of pairs only the second rank receives."""
    if not call.pairs:
        return [Piece(call.count, contribution(call, (rank - 1) % call.world_size))]
    return [Piece(call.count, contribution(call, a)) for a, b in call.pairs if b == rank]


def _expect_answer(call: Call, rank: int) -> list[Piece]:
    peer = call.peer(rank)
    return [] if peer is None else [Piece(call.count, contribution(call, peer))]


def _output(call: Call, at: Buffers) -> torch.Tensor | None:
    return None if call.in_place else at.output


def _send_recv(by: Contender, call: Call, at: Buffers, rank: int) -> Timed:
    if not call.pairs:
        return by.send_recv(at.output, at.input)
    peer = call.peer(rank)
    if peer is None:
        return _nothing_to_do
    is_first = any(a == rank for a, _ in call.pairs)
    return by.send(at.input, peer) if is_first else by.recv(at.output, peer)


def _ping_pong(by: Contender, call: Call, at: Buffers, rank: int) -> Timed:
    peer = call.peer(rank)
    if peer is None:
        return _nothing_to_do
    send, recv = by.send(at.input, peer), by.recv(at.output, peer)
    is_first = any(a == rank for a, _ in call.pairs)
    first, second = (send, recv) if is_first else (recv, send)

    def exchange() -> None:
        first()
        second()

    return exchange


def _nothing_to_do() -> None:
    """Stand for the call of a rank that is in no pair."""


def _one(n: int) -> float:
    return 1.0


def _share_of_others(n: int) -> float:
    return (n - 1) / n


CASES: dict[str, Case] = {
    "all_reduce": Case(
        layout=_one_to_one,
        expectation=lambda call, rank: [Piece(call.count, reduced(call))],
        busbw_factor=lambda n: 2 * (n - 1) / n,
        prepare=lambda by, call, at, rank: by.all_reduce(
            at.input, call.reduce_op, _output(call, at)
        ),
        reduces=True,
        places=("in", "out"),
    ),
    "broadcast": Case(
        layout=_one_to_one,
        expectation=lambda call, rank: [Piece(call.count, contribution(call, call.root))],
        busbw_factor=_one,
        prepare=lambda by, call, at, rank: by.broadcast(at.input, call.root, _output(call, at)),
        has_root=True,
        places=("in", "out"),
    ),
    "reduce": Case(
        layout=_one_to_one,
        expectation=_at_root(lambda call, rank: [Piece(call.count, reduced(call))]),
        busbw_factor=_one,
        prepare=lambda by, call, at, rank: by.reduce(
            at.input, call.root, call.reduce_op, _output(call, at)
        ),
        reduces=True,
        has_root=True,
        places=("in", "out"),
    ),
    "all_gather": Case(
        layout=_one_to_all,
        expectation=_expect_every_block,
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at, rank: by.all_gather(at.output, at.input),
    ),
    "reduce_scatter": Case(
        layout=_all_to_one,
        expectation=lambda call, rank: [Piece(call.count, reduced(call, rank * call.count))],
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at, rank: by.reduce_scatter(at.output, at.input, call.reduce_op),
        reduces=True,
    ),
    "all_to_all": Case(
        layout=_all_to_all,
        expectation=_expect_transposed,
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at, rank: by.all_to_all(at.output, at.input),
        places=("out",),  # in place gloo mixes blocks up, and NCCL has no such call
    ),
    "gather": Case(
        layout=_one_to_all,
        expectation=_at_root(_expect_every_block),
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at, rank: by.gather(at.output, at.input, call.root),
        has_root=True,
    ),
    "scatter": Case(
        layout=_all_to_one,
        expectation=lambda call, rank: [
            Piece(call.count, contribution(call, call.root, rank * call.count))
        ],
        busbw_factor=_share_of_others,
        prepare=lambda by, call, at, rank: by.scatter(at.output, at.input, call.root),
        has_root=True,
    ),
    # Every rank sends to the next one and receives from the one before, at once; of pairs, the
    # first rank sends to the second.
    "send_recv": Case(
        layout=_one_to_one,
        expectation=_expect_neighbour,
        busbw_factor=_one,
        prepare=_send_recv,
        places=("out",),
    ),
    # The second rank of a pair answers the first.
    "ping_pong": Case(
        layout=_one_to_one,
        expectation=_expect_answer,
        busbw_factor=_one,
        prepare=_ping_pong,
        places=("out",),
        messages=2,
    ),
    # Its check is one of time, not of data: see measure.check.
    "barrier": Case(
        layout=_nothing,
        expectation=lambda call, rank: [],
        busbw_factor=lambda n: 0.0,
        prepare=lambda by, call, at, rank: by.barrier(),
        has_data=False,
        places=("out",),
    ),
}
