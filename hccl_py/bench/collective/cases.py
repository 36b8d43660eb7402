"""The benchmark's cases: three hooks and some flags per collective, one `Case` each.

    blocks        how many blocks go in and come out
    expectation   the expected result of a rank, from the oracle
    bind          the call itself, bound to a contender and its buffers

A new collective is a new entry of `CASES`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hccl_py.bench.collective.contender import Contender, Timed
from hccl_py.bench.collective.oracle import ITEM_SIZES, Call, Piece, contribution, reduced

Expect = Callable[[Call, int], list[Piece]]
Bind = Callable[[Contender, Call, int, Any, Any], Timed]
"""Takes contender, call, rank, input and output; in place, the last two are one or overlap."""


def _bind_collective(by: Contender, call: Call, rank: int, input: Any, output: Any) -> Timed:
    return by.bind(call, input, output)


@dataclass(frozen=True)
class Case:
    """The three hooks and the flags of one collective; `n` is the world size.

    Attributes:
        reduces, has_root, has_data: whether its calls take an op, a root, a buffer.
        places: "in" place, "out" of place or both; first the one that torch's call uses.
        messages: messages that follow each other in one call; its time is divided by them.
    """

    blocks: Callable[[int], tuple[int, int]]
    expectation: Expect
    bind: Bind = _bind_collective
    reduces: bool = False
    has_root: bool = False
    has_data: bool = True
    places: tuple[str, ...] = ("out", "in")
    messages: int = 1

    def count(self, size: int, dtype: str, n: int) -> int:
        """Return the elements of one rank's block for a size in bytes: rounded down, at least 1."""
        blocks = max(self.blocks(n))
        return max(1, size // (ITEM_SIZES[dtype] * blocks)) if blocks else 0

    def num_bytes(self, count: int, dtype: str, n: int) -> int:
        """Return the bytes of a rank's larger buffer, of blocks of `count` elements."""
        return max(self.blocks(n)) * count * ITEM_SIZES[dtype]


def _expect_reduced(call: Call, rank: int) -> list[Piece]:
    return [Piece(call.count, reduced(call))]


def _expect_every_block(call: Call, rank: int) -> list[Piece]:
    return [Piece(call.count, contribution(call, peer)) for peer in range(call.world_size)]


def _expect_transposed(call: Call, rank: int) -> list[Piece]:
    offset = rank * call.count
    return [Piece(call.count, contribution(call, peer, offset)) for peer in range(call.world_size)]


def _at_root(expect: Expect) -> Expect:
    """Expect nothing of the other ranks: their buffers are unspecified."""
    return lambda call, rank: expect(call, rank) if rank == call.root else []


def _expect_neighbour(call: Call, rank: int) -> list[Piece]:
    """Expect the block of the previous rank; with pairs, only the second rank of each receives."""
    if not call.pairs:
        return [Piece(call.count, contribution(call, (rank - 1) % call.world_size))]
    return [Piece(call.count, contribution(call, a)) for a, b in call.pairs if b == rank]


def _expect_answer(call: Call, rank: int) -> list[Piece]:
    peer = call.peer(rank)
    return [] if peer is None else [Piece(call.count, contribution(call, peer))]


def _bind_send_recv(by: Contender, call: Call, rank: int, input: Any, output: Any) -> Timed:
    """Send to the next rank and receive from the previous; with pairs, the first rank sends."""
    if call.pairs:
        peer = call.peer(rank)
        if peer is None:
            return _nothing_to_do
        is_first = call.begins(rank)
        return _one_way(by, call, *(("send", peer, input) if is_first else ("recv", peer, output)))
    start_send = _one_way(by, call, "start_send", (rank + 1) % call.world_size, input)
    recv = _one_way(by, call, "recv", (rank - 1) % call.world_size, output)

    def exchange() -> None:
        sending = start_send()
        recv()
        if sending is not None:
            sending.wait()

    return exchange


def _bind_ping_pong(by: Contender, call: Call, rank: int, input: Any, output: Any) -> Timed:
    """The second rank of a pair answers the first."""
    peer = call.peer(rank)
    if peer is None:
        return _nothing_to_do
    first = _one_way(by, call, "send", peer, input)
    second = _one_way(by, call, "recv", peer, output)
    if not call.begins(rank):
        first, second = second, first

    def exchange() -> None:
        first()
        second()

    return exchange


def _one_way(by: Contender, call: Call, op: str, peer: int, data: Any) -> Callable[[], Any]:
    return by.bind(replace(call, op=op, root=peer, in_place=True), data, data)


def _nothing_to_do() -> None:
    """Do what a rank does that is in no pair."""


PAIRED = ("send_recv", "ping_pong")
"""The cases between two ranks."""

CASES: dict[str, Case] = {
    "all_reduce": Case(
        blocks=lambda n: (1, 1),
        expectation=_expect_reduced,
        reduces=True,
        places=("in", "out"),
    ),
    "broadcast": Case(
        blocks=lambda n: (1, 1),
        expectation=lambda call, rank: [Piece(call.count, contribution(call, call.root))],
        has_root=True,
        places=("in", "out"),
    ),
    "reduce": Case(
        blocks=lambda n: (1, 1),
        expectation=_at_root(_expect_reduced),
        reduces=True,
        has_root=True,
        places=("in", "out"),
    ),
    "all_gather": Case(
        blocks=lambda n: (1, n),
        expectation=_expect_every_block,
    ),
    "reduce_scatter": Case(
        blocks=lambda n: (n, 1),
        expectation=lambda call, rank: [Piece(call.count, reduced(call, rank * call.count))],
        reduces=True,
    ),
    "all_to_all": Case(
        blocks=lambda n: (n, n),
        expectation=_expect_transposed,
        places=("out",),  # in place gloo gives wrong results, and NCCL has no such call
    ),
    "gather": Case(
        blocks=lambda n: (1, n),
        expectation=_at_root(_expect_every_block),
        has_root=True,
    ),
    "scatter": Case(
        blocks=lambda n: (n, 1),
        expectation=lambda call, rank: [
            Piece(call.count, contribution(call, call.root, rank * call.count))
        ],
        has_root=True,
    ),
    "send_recv": Case(
        blocks=lambda n: (1, 1),
        expectation=_expect_neighbour,
        bind=_bind_send_recv,
        places=("out",),
    ),
    "ping_pong": Case(
        blocks=lambda n: (1, 1),
        expectation=_expect_answer,
        bind=_bind_ping_pong,
        places=("out",),
        messages=2,
    ),
    # Its check compares times, not data: see measure.count_wrong.
    "barrier": Case(
        blocks=lambda n: (0, 0),
        expectation=lambda call, rank: [],
        has_data=False,
        places=("out",),
    ),
}
