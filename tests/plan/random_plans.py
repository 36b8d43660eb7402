"""Plans that nobody would write: random trees, relays, pieces and orders, for any collective.

What is done with the data is drawn first, as steps that depend on each other. Then all ranks are
played: some op that could run is chosen again and again, while messages wait in their lanes for a
random while. So messages cross, sources are overwritten early and lanes fill up. Whether the engine
can run such plans is for `verify` to say.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from hccl_py.algorithms.custom import CustomAlgorithm, algorithm
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Chunk, Op, OpKind, PlanBuilder, data, input, output

SEND, RECV, RECV_REDUCE, COPY = OpKind
COLLECTIVES_DRAWN = tuple(COLLECTIVES)
# Blocks of all ranks have one length in these: else none could pass through another rank.
_RELAYED = {"all_to_all": input[0], "gather": input[0], "scatter": output[0]}
_Place = tuple[int, object]
_Ordered = list[list[Op | None]]
"""The ops of each rank; None ends a step."""


def random_algorithm(seed: int, n: int) -> CustomAlgorithm:
    """Draw an algorithm for n ranks; the same seed gives the same one. It may be wrong."""
    random = Random(seed)
    collective = COLLECTIVES_DRAWN[seed % len(COLLECTIVES_DRAWN)]
    rooted = COLLECTIVES[collective].rooted
    parts = random.choice((1, 2, 5, 7, 12))
    keeps_steps = random.random() < 0.25
    drawn: dict[int | None, _Ordered] = {}
    for root in range(n) if rooted else (None,):
        ordered = None
        while ordered is None:  # the orders drawn crossed each other
            draft = _Draft(n, random)
            draft.relayed = _RELAYED.get(collective)
            draft.write(collective, root, parts)
            ordered = _in_steps(draft, random) if keeps_steps else _in_any_order(draft, random)
        drawn[root] = ordered

    def replay(me: int, _n: int, plan: PlanBuilder) -> None:
        for op in drawn[plan.root if rooted else None][me]:
            if op is None:
                plan.end_step()
            elif op.kind is SEND and op.src:
                plan.send(op.peers, op.src)
            elif op.kind is COPY and op.dst and op.src:
                plan.copy(op.dst, op.src)
            elif op.dst and op.kind is RECV:
                plan.recv(op.peers[0], op.dst)
            elif op.dst:
                plan.recv_reduce(op.peers, op.dst)

    replay.__name__ = f"random_{seed}"
    equal = collective in _RELAYED
    return algorithm(collective, chunks=parts, equal_blocks=equal, when=lambda m, _: m == n)(replay)


@dataclass(eq=False)
class _Step:
    """An op of a rank."""

    rank: int
    op: Op
    of: list[_Step]  # of a receive: the sends that it takes, one for each peer
    after: list[_Step] = field(default_factory=list)  # of the same rank
    is_done: bool = False


class _Draft:
    """The steps of all ranks, right if they were taken in the order in which they were added."""

    def __init__(self, n: int, random: Random) -> None:
        self.n, self.random = n, random
        self.steps: list[_Step] = []
        # What scratch is like where blocks pass through a rank; None: where they go to.
        self.relayed: Chunk | None = None
        self._num_slots = random.randint(1, 3)
        self._num_partials = 0
        self._writer: dict[_Place, _Step] = {}
        self._readers: defaultdict[_Place, list[_Step]] = defaultdict(list)

    def add(self, rank: int, op: Op, of: Sequence[_Step] = ()) -> _Step:
        """Add an op, behind those whose places it reads or overwrites."""
        step = _Step(rank, op, list(of))
        for place in _places(rank, op.dst if op.kind is RECV_REDUCE else op.src):
            step.after += [self._writer[place]] if place in self._writer else []
            self._readers[place].append(step)
        for place in _places(rank, op.dst):
            step.after += [self._writer[place]] if place in self._writer else []
            step.after += [one for one in self._readers.pop(place, ()) if one is not step]
            self._writer[place] = step
        self.steps.append(step)
        return step

    def copy(self, rank: int, dst: Chunk, src: Chunk) -> Chunk:
        self.add(rank, Op(COPY, (), dst, src))
        return dst

    def send(self, source: int, src: Chunk, targets: Sequence[int]) -> _Step:
        return self.add(source, Op(SEND, tuple(targets), None, src))

    def move(self, source: int, src: Chunk, target: int, dst: Chunk) -> None:
        """Bring a chunk to another rank, maybe through the scratch of others."""
        for between in self.random.choices(range(self.n), k=self.random.choice((0, 0, 0, 1, 2))):
            if between not in (source, target):
                slot = self.slot(self.relayed or dst)
                self.add(between, Op(RECV, (source,), slot), [self.send(source, src, [between])])
                source, src = between, slot
        self.add(target, Op(RECV, (source,), dst), [self.send(source, src, [target])])

    def slot(self, like: Chunk) -> Chunk:
        return like._replace(scratch=self.random.randrange(self._num_slots))

    def partial(self, rank: int, src: Chunk) -> Chunk:
        """Copy a chunk to scratch that nothing else uses."""
        self._num_partials += 1
        return self.copy(rank, src._replace(scratch=2 + self._num_partials), src)

    def tree(self, root: int) -> list[tuple[int, int]]:
        """Draw a tree; its pairs of parent and child, from the root down."""
        others = [rank for rank in range(self.n) if rank != root]
        self.random.shuffle(others)
        there, pairs = [root], list[tuple[int, int]]()
        shape = self.random.choice(("star", "chain", "any"))
        for rank in others:
            parent = {"star": root, "chain": there[-1]}.get(shape, self.random.choice(there))
            pairs.append((parent, rank))
            there.append(rank)
        return pairs

    def spread(self, root: int, chunk: Callable[[int], Chunk]) -> None:
        """Hand a chunk down a tree: to some children at once, to others one by one."""
        pairs = self.tree(root)
        while pairs:
            parent, child = pairs.pop(0)
            mates = [one for up, one in pairs if up == parent and self.random.random() < 0.5]
            pairs = [pair for pair in pairs if pair[1] not in mates]
            if not mates:
                self.move(parent, chunk(parent), child, chunk(child))
                continue
            sent = self.send(parent, chunk(parent), [child, *mates])
            for rank in (child, *mates):
                self.add(rank, Op(RECV, (parent,), chunk(rank)), [sent])

    def reduce(self, root: int, dst: Chunk, mine: Chunk, *, keeps_mine: bool) -> None:
        """Reduce what all ranks have in `mine` up a tree into the root's `dst`."""
        pairs = self.tree(root)
        partial = {rank: mine for rank in range(self.n)}
        if dst != mine:
            self.copy(root, dst, mine)
        for parent in {up for up, _ in pairs} - {root} if keeps_mine else ():
            partial[parent] = self.partial(parent, mine)
        partial[root] = dst
        while pairs:
            parent, child = pairs.pop()
            parents = {up for up, _ in pairs}
            mates = [
                one
                for up, one in pairs
                if up == parent and one not in parents and self.random.random() < 0.5
            ]
            pairs = [pair for pair in pairs if pair[1] not in mates]
            peers = sorted([child, *mates])
            sends = [self.send(peer, partial[peer], [parent]) for peer in peers]
            self.add(parent, Op(RECV_REDUCE, tuple(peers), partial[parent]), sends)

    def pieces(self, parts: int) -> list[Chunk]:
        """Cut data into pieces of several chunks: all, one by one, or anyhow."""
        num_cuts = self.random.choice((0, parts - 1, parts // 2))
        cuts = sorted(self.random.sample(range(1, parts), num_cuts))
        return [data[begin:end] for begin, end in zip((0, *cuts), (*cuts, parts), strict=True)]

    def write(self, collective: str, root: int | None, parts: int) -> None:
        """Add what a collective needs, and messages that nobody needs."""
        if collective in ("all_reduce", "barrier") and self.n == 2 and self.random.random() < 0.5:
            self.exchange(parts)
            return
        top = self.random.randrange(self.n) if root is None else root
        if collective in ("all_reduce", "barrier", "reduce"):
            for piece in self.pieces(parts):
                self.reduce(top, piece, piece, keeps_mine=collective == "reduce")
        if collective in ("all_reduce", "barrier", "broadcast"):
            for piece in self.pieces(parts):
                self.spread(top, lambda _rank, piece=piece: piece)  # type: ignore[misc]
        if COLLECTIVES[collective].blocks is not None:
            self.write_blocks(collective, root)
            return
        for _ in range(self.random.choice((0, 0, 3))):
            source, target = self.random.sample(range(self.n), 2)
            piece = self.random.choice(self.pieces(parts))
            for _ in range(self.random.choice((1, 3, 9))):
                self.move(source, piece, target, self.slot(piece))

    def exchange(self, parts: int) -> None:
        """Two ranks swap and reduce all, each in pieces of its own."""
        pieces = [self.pieces(parts) for _ in range(2)]
        sends = [[self.send(me, one, [1 - me]) for one in pieces[me]] for me in range(2)]
        for me in range(2):
            for piece, sent in zip(pieces[me], sends[me], strict=True):
                self.add(1 - me, Op(RECV_REDUCE, (me,), piece), [sent])

    def write_blocks(self, collective: str, root: int | None) -> None:
        for me in self.random.sample(range(self.n), self.n):
            if collective == "all_gather":
                self.copy(me, output[me], input[0])
                self.spread(me, lambda _rank, me=me: output[me])  # type: ignore[misc]
            elif collective == "reduce_scatter":
                self.reduce(me, output[0], input[me], keeps_mine=True)
            elif collective == "all_to_all":
                self.copy(me, output[me], input[me])
                for peer in self.random.sample(range(self.n), self.n):
                    if peer != me:
                        self.move(me, input[peer], peer, output[me])
            elif me == root:
                pair = (output[me], input[0]) if collective == "gather" else (output[0], input[me])
                self.copy(me, *pair)
            elif root is not None and collective == "gather":
                self.move(me, input[0], root, output[me])
            elif root is not None:
                self.move(root, input[me], me, output[0])


def _places(rank: int, chunk: Chunk | None) -> Iterator[_Place]:
    if chunk is not None and chunk.scratch is not None:
        yield rank, chunk.scratch
    elif chunk is not None:
        yield from ((rank, (chunk.buffer, index)) for index in range(chunk.begin, chunk.end))


class _Play:
    """All ranks, while their ops are put into an order."""

    def __init__(self, draft: _Draft) -> None:
        self.waiting = list(draft.steps)
        self.ops: _Ordered = [[] for _ in range(draft.n)]
        self.lanes: defaultdict[tuple[int, int], deque[_Step]] = defaultdict(deque)

    def ready(self, *, sends: bool) -> list[_Step]:
        return [
            one
            for one in self.waiting
            if (one.op.kind is SEND) == sends
            and all(before.is_done for before in one.after)
            and all([*self.lanes[sent.rank, one.rank], None][0] is sent for sent in one.of)
        ]

    def do(self, step: _Step) -> None:
        step.is_done = True
        self.waiting.remove(step)
        self.ops[step.rank].append(step.op)
        for sent in step.of:
            self.lanes[sent.rank, step.rank].popleft()
        for peer in step.op.peers if step.op.kind is SEND else ():
            self.lanes[step.rank, peer].append(step)


def _in_any_order(draft: _Draft, random: Random) -> _Ordered | None:
    play, haste = _Play(draft), random.choice((0.1, 0.5, 0.9, 1))
    while play.waiting:
        sends, others = play.ready(sends=True), play.ready(sends=False)
        if not sends and not others:
            return None
        play.do(random.choice(sends if sends and random.random() < haste or not others else others))
    return play.ops


def _in_steps(draft: _Draft, random: Random) -> _Ordered | None:
    """The same in steps: sends first, one for each pair of ranks, and all received."""
    play = _Play(draft)
    while play.waiting:
        before, pairs = len(play.waiting), set[tuple[int, int]]()
        for step in play.ready(sends=True):
            mine = {(step.rank, peer) for peer in step.op.peers}
            if not pairs & mine and (not pairs or random.random() < 0.7):
                pairs |= mine
                play.do(step)
        while ready := play.ready(sends=False):
            play.do(random.choice(ready))
        if len(play.waiting) == before or any(play.lanes.values()):
            return None
        for ops in play.ops:
            ops.append(None)
    return play.ops
