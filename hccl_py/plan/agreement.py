"""When a rank knows that the others run the same collective, by what its plan has heard.

A message belongs to a call, and says so; so whoever hears from a rank, directly or through others,
knows that it made the same call. What a plan writes before it knows that of everybody whom it will
hear from may turn out to be wrong: another rank may have called something else. Two things help:

- First messages. What a peer sends before it has to wait for anybody, or writes anything, comes
  in any case: nothing is written before all of these are there.
- Old bytes. What is written even so, before everybody was heard from, is kept and put back.

A message may be missing because its chunk is empty. So what a message tells is reckoned from those
alone that must have gone before it if it is there: the ones with a chunk that contains its own.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hccl_py.plan.chunks import BufferName, Chunk
from hccl_py.plan.ops import Op, OpKind, Plan

_RECEIVES = (OpKind.RECV, OpKind.RECV_REDUCE)
_Range = tuple[BufferName, int, int]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What one rank's engine has to look after.

    Attributes:
        first_messages: pairs of an op and the peer whose first message it gets.
        unsure: the ops that write before everybody was heard from.
    """

    first_messages: tuple[tuple[int, int], ...]
    unsure: frozenset[int]


@dataclass
class _Rank:
    """One rank on its way through its plan; sets of ranks are bit masks."""

    plan: Plan
    heard: int
    next_op: int = 0
    waits_for: int | None = None
    known: dict[_Range, int] = field(default_factory=dict)
    wide: set[_Range] = field(default_factory=set)  # of several chunks; they are few
    known_after: dict[int, int] = field(default_factory=dict)

    def known_of(self, chunk: Chunk) -> int:
        """Return who is known to agree where there is something in `chunk`."""
        mask = 1 << self.plan.rank | self.known.get((chunk.buffer, chunk.begin, chunk.end), 0)
        for place in self.wide:
            buffer, begin, end = place
            if buffer is chunk.buffer and begin <= chunk.begin and chunk.end <= end:
                mask |= self.known[place]
        return mask

    def learn(self, chunk: Chunk, mask: int) -> int:
        """Note that those in `mask` are known to agree; return all who are now."""
        place = (chunk.buffer, chunk.begin, chunk.end)
        if chunk.end - chunk.begin > 1:
            self.wide.add(place)
        self.known[place] = self.known.get(place, 0) | mask
        self.heard |= mask
        return self.known_of(chunk)


def agreements(plans: Sequence[Plan]) -> tuple[Agreement, ...]:
    """Find for every rank what its engine has to look after.

    Args:
        plans: of all ranks, and such that `verify` accepts them.
    """
    firsts = [_first_messages(plan, plans) for plan in plans]
    ranks = _run(plans)
    return tuple(
        Agreement(first, _unsure(rank, first)) for rank, first in zip(ranks, firsts, strict=True)
    )


def writes(op: Op) -> bool:
    """Whether the op writes to the caller's memory."""
    return op.dst is not None and op.dst.scratch is None


def _first_messages(plan: Plan, plans: Sequence[Plan]) -> tuple[tuple[int, int], ...]:
    first_op: dict[int, int] = {}
    for index, op in enumerate(plan.ops):
        if op.kind in _RECEIVES:
            for peer in op.peers:
                first_op.setdefault(peer, index)
    return tuple(
        (index, peer) for peer, index in first_op.items() if _sends_first(plans[peer], plan.rank)
    )


def _sends_first(plan: Plan, to: int) -> bool:
    """Whether the rank of `plan` sends to `to` before it waits or writes."""
    for op in plan.ops:
        if op.kind is OpKind.SEND and to in op.peers:
            return True
        if op.kind in _RECEIVES or writes(op):
            return False
    return False


def _run(plans: Sequence[Plan]) -> list[_Rank]:
    """Run all plans and note who is known to agree after each op."""
    ranks = [_Rank(plan, 1 << plan.rank) for plan in plans]
    lanes: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
    ready = deque(range(len(plans)))
    while ready:
        rank = ranks[ready.popleft()]
        me, ops = rank.plan.rank, rank.plan.ops
        while rank.next_op < len(ops):
            op = ops[rank.next_op]
            if op.kind is OpKind.SEND:
                assert op.src is not None
                message = rank.known_of(op.src)
                for peer in op.peers:
                    lanes[me, peer].append(message)
                    if ranks[peer].waits_for == me:
                        ready.append(peer)
            elif op.kind is OpKind.COPY:
                assert op.src is not None and op.dst is not None
                rank.known_after[rank.next_op] = rank.learn(op.dst, rank.known_of(op.src))
            else:
                assert op.dst is not None
                silent = next((peer for peer in op.peers if not lanes[peer, me]), None)
                rank.waits_for = silent
                if silent is not None:
                    break
                for peer in op.peers:
                    known = rank.learn(op.dst, lanes[peer, me].popleft())
                rank.known_after[rank.next_op] = known
            rank.next_op += 1
    return ranks


def _unsure(rank: _Rank, first_messages: Sequence[tuple[int, int]]) -> frozenset[int]:
    at_first = 0
    if rank.plan.shape.data_chunks == 0:  # blocks: an empty one is announced as well
        for _, peer in first_messages:
            at_first |= 1 << peer
    return frozenset(
        index
        for index, known in rank.known_after.items()
        if writes(rank.plan.ops[index]) and rank.heard & ~(known | at_first)
    )
