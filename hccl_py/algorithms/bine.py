"""Bine trees: binomial trees and butterflies between ranks whose numbers are nearer to one another.

A place has digits in base -2. In step k of a butterfly an even place adds the number whose k
lowest digits are 1 (1, -1, 3, -5, 11, ...), an odd one subtracts it. Distances are about a third of
the number of ranks at most, not half, so a message leaves a group of consecutive ranks less often.

Among n ranks, p is the largest power of two up to n. Of n - p pairs of neighbours, one is the head,
and takes part for both. If n is no power of two, that costs two steps more (one in rooted
collectives), and all data or blocks are sent between the two once or twice.

Source, for all: D. De Sensi, S. Pasqualoni, L. Piarulli, T. Bonato, S. Ba, M. Turisini, J. Domke,
T. Hoefler, Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality, 2025
(arXiv 2508.17311), for powers of two.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.language import Chunk, Nodes, PlanBuilder, data, input, output


def num_seats(nodes: Nodes) -> int:
    """Return the largest power of two that is at most the number of ranks."""
    return _seats_of(count_ranks(nodes))


def _seats_of(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def max_span(nodes: Nodes) -> int:
    """Return the most chunks of `data`, or blocks, in one message, all of a shared seat's."""
    n, seats = count_ranks(nodes), num_seats(nodes)
    return max(1, n // 2) if n == seats else n


class _Table(NamedTuple):
    """The seats of `n` ranks: by seat its ranks, the first of which is the head."""

    n: int
    ranks: tuple[tuple[int, ...], ...]

    @property
    def num_steps(self) -> int:
        return len(self.ranks).bit_length() - 1

    def seat_of(self, rank: int) -> int:
        shared = self.n - len(self.ranks)
        return rank // 2 if rank < 2 * shared else rank - shared

    def partner(self, seat: int, step: int) -> int:
        """Return the seat with which one exchanges in step 1, 2, ... of a butterfly."""
        distance: int = (1 - (-2) ** step) // 3
        return (seat - distance if seat % 2 else seat + distance) % len(self.ranks)

    def steps(self, seat: int) -> list[tuple[int, int]]:
        """Return the steps with their partners."""
        return [(step, self.partner(seat, step)) for step in range(1, self.num_steps + 1)]


@lru_cache(maxsize=8)
def _table(n: int) -> _Table:
    seats = _seats_of(n)
    shared = n - seats
    pairs = [(2 * seat, 2 * seat + 1) for seat in range(shared)]
    return _Table(n, (*pairs, *((seat + shared,) for seat in range(shared, seats))))


@lru_cache(maxsize=8)
def _order(n: int) -> tuple[int, ...]:
    """Return the seats so ordered that those with which a seat exchanges after a step are a range.

    The seats that get their result from seat s in the steps after step k, and s itself, are the
    aligned range of 2^(steps - k) seats with the place of s.
    """
    table, order = _table(n), [0]
    for step in range(1, table.num_steps + 1):
        pairs = ((seat, table.partner(seat, step)) for seat in order)
        order = [seat for pair in pairs for seat in sorted(pair, key=lambda one: one % 2)]
    return tuple(order)


def _range(n: int, seat: int, step: int) -> tuple[int, int]:
    """Return where the seats of `_order` begin and end for which a seat stands after a step."""
    length = len(_table(n).ranks) >> step
    begin = _order(n).index(seat) // length * length
    return begin, begin + length


def _tree(place: int, seats: int) -> tuple[int | None, list[int]]:
    """Return parent and children of a place in the tree from place 0, largest subtree first.

    A message flips the k lowest digits of its sender's place, which are equal. A place with u equal
    digits at its end thus has got it from that with these flipped, and flips fewer.
    """
    digits_of_1 = 0xAAAAAAAA & (seats - 1)
    digits = (place + digits_of_1 ^ digits_of_1) & (seats - 1)

    def flipped(many: int) -> int:
        return ((digits ^ (1 << many) - 1) ^ digits_of_1) - digits_of_1 & (seats - 1)

    if not place:
        return None, [flipped(many) for many in reversed(range(1, seats.bit_length()))]
    changes = digits ^ digits >> 1 | seats >> 1  # a bit where a digit differs from the next
    equal = (changes & -changes).bit_length()
    return flipped(equal), [flipped(many) for many in reversed(range(1, equal))]


class _Rooted(NamedTuple):
    """A rank's place in the tree of a rooted collective, in which the root is a head."""

    head: int
    mates: list[int]  # of a head, the other ranks of its seat
    parent: int | None
    children: list[int]


def _rooted(me: int, n: int, root: int) -> _Rooted:
    table = _table(n)
    seats, mine, base = len(table.ranks), table.seat_of(me), table.seat_of(root)

    def head(place: int) -> int:
        seat = (place + base) % seats
        return root if seat == base else table.ranks[seat][0]

    place = (mine - base) % seats
    parent, children = _tree(place, seats)
    mates = [rank for rank in table.ranks[mine] if rank != head(place)]
    above = None if parent is None else head(parent)
    return _Rooted(head(place), mates, above, list(map(head, children)))


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """Bine tree: in every step each rank that has the data passes it on.

    Cost: log2 n steps, at most log2 n x the data sent, by the root.
    """
    seat = _rooted(me, n, plan.root)
    if me != seat.head:
        plan.recv(seat.head, data[:])
        return
    if seat.parent is not None:
        plan.recv(seat.parent, data[:])
    plan.send([*seat.children, *seat.mates], data[:])


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Bine tree towards the root; partial results are in scratch, as only the root's data changes.

    Cost: log2 n steps, the data sent once by everyone, at most log2 n x reduced by one rank.
    """
    seat = _rooted(me, n, plan.root)
    if me != seat.head:
        plan.send([seat.head], data[:])
        return
    sources, partial = [*seat.children, *seat.mates], data[:]
    if seat.parent is not None and sources:
        partial = plan.scratch(0, like=data[:])
        plan.copy(partial, data[:])
    plan.recv_reduce(sources, partial)
    if seat.parent is not None:
        plan.send([seat.parent], partial)


def broadcast_by_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """Halves of the data go down a tree until each rank has a chunk, then ranks gather them.

    Cost: 2 log2 n steps; about (n-1)/n x the data sent by a rank, 2(n-1)/n by the root.
    """
    table = _table(n)
    heads = [ranks[0] for ranks in table.ranks]
    heads[table.seat_of(plan.root)] = plan.root
    mine = table.seat_of(me)
    if me != heads[mine]:
        plan.recv(heads[mine], data[:])
        return
    came = {table.seat_of(plan.root): 0}  # by seat, the step in which it gets its part
    for step in range(1, table.num_steps + 1):
        came |= {table.partner(seat, step): step for seat in list(came)}
    for step, partner in table.steps(mine):
        if came[mine] == step:
            plan.recv(heads[partner], data[slice(*_range(n, mine, step))])
        elif came[mine] < step:
            plan.send([heads[partner]], data[slice(*_range(n, partner, step))])
    for step, partner in reversed(table.steps(mine)):
        if came[mine] != step:  # else the partner has sent these chunks
            plan.send([heads[partner]], data[slice(*_range(n, mine, step))])
        if came[partner] != step:
            plan.recv(heads[partner], data[slice(*_range(n, partner, step))])
    plan.send([rank for rank in table.ranks[mine] if rank != me], data[:])


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Ranks swap halves of their chunks until each has one, the nearest first, then gather in
    reverse.

    Cost: 2 log2 n steps; 2(n-1)/n of the data sent.
    """
    with _among_heads(me, n, plan) as steps:
        mine = _table(n).seat_of(me)
        for step, partner, peer in steps:
            plan.send([peer], data[slice(*_range(n, partner, step))])
            plan.recv_reduce([peer], data[slice(*_range(n, mine, step))])
        for step, partner, peer in reversed(steps):
            plan.send([peer], data[slice(*_range(n, mine, step))])
            plan.recv(peer, data[slice(*_range(n, partner, step))])


def all_reduce_by_doubling(me: int, n: int, plan: PlanBuilder) -> None:
    """Partners exchange their partial results, the farthest first.

    Before each step the seats of an aligned range of `_order` have the same partial result, and
    partners are in two such ranges. So they all reduce the same two operands, in either order. With
    the nearest first, ranks with the same partial result would get different ones.

    Cost: log2 n steps, log2 n x the data sent and reduced.
    """
    with _among_heads(me, n, plan) as steps:
        for _, _, peer in reversed(steps):
            plan.send([peer], data[:])
            plan.recv_reduce([peer], data[:])


@contextmanager
def _among_heads(me: int, n: int, plan: PlanBuilder) -> Iterator[list[tuple[int, int, int]]]:
    """Give the steps of an all_reduce among the heads: number, partner's seat, partner.

    Before them heads reduce the data of their mates, and after them send the result. A mate has no
    steps.
    """
    table = _table(n)
    mine = table.seat_of(me)
    head, *mates = table.ranks[mine]
    if me != head:
        plan.send([head], data[:])
        plan.recv(head, data[:])
        yield []
        return
    plan.recv_reduce(mates, data[:])
    yield [(step, partner, table.ranks[partner][0]) for step, partner in table.steps(mine)]
    plan.send(mates, data[:])


def _in_scratch(n: int, plan: PlanBuilder, like: Chunk) -> "_Slots":
    table = _table(n)
    ends = accumulate((len(table.ranks[seat]) for seat in _order(n)), initial=0)
    return _Slots(plan, like, tuple(ends), [r for seat in _order(n) for r in table.ranks[seat]])


class _Slots(NamedTuple):
    """The blocks of all ranks in scratch, in the order of the seats: those of a range are one
    message."""

    plan: PlanBuilder
    like: Chunk  # a block
    ends: Sequence[int]  # by number of seats, of blocks
    ranks: Sequence[int]  # by slot, whose block it has

    def of(self, rank: int) -> Chunk:
        return self._blocks(self.ranks.index(rank), 1)

    def seats(self, begin: int, end: int) -> Chunk:
        return self._blocks(self.ends[begin], self.ends[end] - self.ends[begin])

    def each(self) -> Iterator[tuple[int, Chunk]]:
        return ((rank, self._blocks(slot, 1)) for slot, rank in enumerate(self.ranks))

    def every(self) -> Chunk:
        return self._blocks(0, len(self.ranks))

    def _blocks(self, first: int, many: int) -> Chunk:
        return self.plan.scratch(first, like=self.like.buffer[0:many])


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Partners swap the blocks that each has, the farthest first, when these are few.

    Cost: log2 n steps, one message each; (n-1) blocks sent, each copied twice more.
    """
    table, slots = _table(n), _in_scratch(n, plan, output[0])
    mine = table.seat_of(me)
    head, *mates = table.ranks[mine]
    if me != head:
        plan.send([head], input[0])
        plan.recv(head, slots.every())
    else:
        plan.copy(slots.of(me), input[0])
        for mate in mates:
            plan.recv(mate, slots.of(mate))
        for step, partner in reversed(table.steps(mine)):
            peer = table.ranks[partner][0]
            plan.send([peer], slots.seats(*_range(n, mine, step)))
            plan.recv(peer, slots.seats(*_range(n, partner, step)))
        plan.send(mates, slots.every())
    for rank, slot in slots.each():
        plan.copy(output[rank], slot)


def reduce_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """Partners swap half of the blocks that each still reduces, the nearest first, when these are
    many.

    Cost: log2 n steps, one message each; (n-1) blocks sent, all copied once more.
    """
    table, slots = _table(n), _in_scratch(n, plan, input[0])
    mine = table.seat_of(me)
    head, *mates = table.ranks[mine]
    for rank, slot in slots.each():
        plan.copy(slot, input[rank])
    if me != head:
        plan.send([head], slots.every())
        plan.recv(head, output[0])
        return
    plan.recv_reduce(mates, slots.every())
    for step, partner in table.steps(mine):
        peer = table.ranks[partner][0]
        plan.send([peer], slots.seats(*_range(n, partner, step)))
        plan.recv_reduce([peer], slots.seats(*_range(n, mine, step)))
    for mate in mates:
        plan.send([mate], slots.of(mate))
    plan.copy(output[0], slots.of(me))
