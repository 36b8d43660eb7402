"""Plans that nobody would write: random trees, relays, pieces and orders, for any collective.

What is done with the data is drawn first, as steps that depend on each other. Then all ranks are
played: some op that could run is chosen again and again, while messages wait in their lanes for a
random while. So messages cross, sources are overwritten early and lanes fill up. Whether the engine
can run such plans is for `verify` to say. `changed` makes most of them wrong.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random

from hccl_py.plan.contracts import COLLECTIVES, Contract
from hccl_py.plan.language import Chunk, Nodes, Op, OpKind, Plan, data, input, output

SEND, RECV, RECV_REDUCE, COPY = OpKind
# Blocks of all ranks have one length in these: else none could pass through another rank.
_RELAYED = {"all_to_all": input[0], "gather": input[0], "scatter": output[0]}
_Place = tuple[int, object]
_Ordered = list[list[Op | None]]
"""The ops of each rank; None ends a step."""


@dataclass(frozen=True)
class Drawn:
    """Plans of all ranks, right or wrong, and their contract."""

    plans: tuple[Plan, ...]
    equal_blocks: bool
    in_rank_order: bool

    @property
    def contract(self) -> Contract:
        return replace(
            COLLECTIVES[self.plans[0].collective],
            equal_blocks=self.equal_blocks,
            in_rank_order=self.in_rank_order,
        )

    @property
    def span(self) -> int:
        """Most chunks in one op of any rank."""
        return max(plan.span for plan in self.plans)


def random_plans(
    seed: int,
    nodes: Nodes,
    collectives: Sequence[str],
    *,
    in_rank_order: bool = False,
    one_by_one: bool = False,
) -> Drawn:
    """Draw plans; the same arguments give the same ones. They may be wrong.

    `in_rank_order`: a reduction takes all ranks' parts at once. `one_by_one`: no op moves several
    chunks.
    """
    random, n = Random(seed), sum(map(len, nodes))
    collective = random.choice(collectives)
    contract = COLLECTIVES[collective]
    root = random.randrange(n) if contract.rooted else None
    parts = random.choice((1, 2, 3, 4) if one_by_one else (1, 2, 5, 7, 12))
    keeps_steps = random.random() < 0.25
    ordered = None
    while ordered is None:  # the orders drawn crossed each other
        draft = _Draft(n, random, in_rank_order=in_rank_order, one_by_one=one_by_one)
        draft.relayed = _RELAYED.get(collective)
        draft.write(collective, root, parts)
        ordered = _in_steps(draft, random) if keeps_steps else _in_any_order(draft, random)
    plans = []
    for rank, mixed in enumerate(ordered):
        plan = Plan(collective, f"random_{seed}", rank, n, root)
        ops = tuple(op for op in mixed if op is not None)
        ends = accumulate(op is not None for op in mixed)
        steps = tuple(end for op, end in zip(mixed, ends, strict=True) if op is None)
        shape = contract.shape(plan, parts if contract.blocks is None else 1)
        plans.append(replace(plan, shape=shape, ops=ops, steps=steps))
    return Drawn(tuple(plans), draft.relayed is not None or draft.has_bundles, in_rank_order)


def changed(drawn: Drawn, random: Random) -> Drawn:
    """Drop, double, move or alter one op; the steps go, which every change breaks."""
    plans = [replace(plan, steps=()) for plan in drawn.plans]
    at = random.choice([rank for rank, plan in enumerate(plans) if plan.ops] or [0])
    ops = list(plans[at].ops)
    if ops:
        index = random.randrange(len(ops))
        op = ops.pop(index)
        place, chunk = random.randrange(len(ops) + 1), op.dst or op.src
        assert chunk is not None
        other = chunk._replace(scratch=random.randrange(3))
        kind = {RECV: RECV_REDUCE, RECV_REDUCE: RECV}.get(op.kind, op.kind)
        new = op._replace(dst=other) if op.dst else op._replace(src=other)
        if len(op.peers) == 1 and random.random() < 0.5:
            new = op._replace(kind=kind)
        ops[index:index] = random.choice(([], [op, op], [new], [new]))
        if random.random() < 0.4:
            ops = [*plans[at].ops[:index], *plans[at].ops[index + 1 :]]
            ops.insert(place, op)
    plans[at] = replace(plans[at], ops=tuple(ops))
    return replace(drawn, plans=tuple(plans))


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

    def __init__(self, n: int, random: Random, *, in_rank_order: bool, one_by_one: bool) -> None:
        self.n, self.random = n, random
        self._in_rank_order, self._one_by_one = in_rank_order, one_by_one
        self.has_bundles = False  # of several blocks in one message
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

    def tree(self, root: int, but: int | None = None) -> list[tuple[int, int]]:
        """Draw a tree over all ranks but one; its pairs of parent and child, from the root down."""
        others = [rank for rank in range(self.n) if rank not in (root, but)]
        self.random.shuffle(others)
        there, pairs = [root], list[tuple[int, int]]()
        shape = self.random.choice(("star", "chain", "any"))
        for rank in others:
            parent = {"star": root, "chain": there[-1]}.get(shape, self.random.choice(there))
            pairs.append((parent, rank))
            there.append(rank)
        return pairs

    def spread(self, root: int, chunk: Callable[[int], Chunk], but: int | None = None) -> None:
        """Hand a chunk down a tree: to some children at once, to others one by one."""
        pairs = self.tree(root, but)
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
        if self._in_rank_order:
            pairs = [(root, child) for _, child in pairs]
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
                if up == parent and one not in parents
                if self._in_rank_order or self.random.random() < 0.5
            ]
            pairs = [pair for pair in pairs if pair[1] not in mates]
            peers = sorted([child, *mates])
            sends = [self.send(peer, partial[peer], [parent]) for peer in peers]
            self.add(parent, Op(RECV_REDUCE, tuple(peers), partial[parent]), sends)

    def pieces(self, parts: int) -> list[Chunk]:
        """Cut data into pieces of several chunks: all, one by one, or anyhow."""
        num_cuts = self.random.choice((0, parts - 1, parts // 2))
        num_cuts = parts - 1 if self._one_by_one else num_cuts
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

    def bundle(self, source: int, target: int, blocks: Sequence[int]) -> None:
        """Bring blocks of output to another rank in one message, in slots of their own."""
        self.has_bundles = True
        base = self._num_partials = self._num_partials + len(blocks) + 2
        many = output[0 : len(blocks)]._replace(scratch=base)
        slots = [output[0]._replace(scratch=base + at) for at in range(len(blocks))]
        for slot, block in zip(slots, blocks, strict=True):
            self.copy(source, slot, output[block])
        self.add(target, Op(RECV, (source,), many), [self.send(source, many, [target])])
        for slot, block in zip(slots, blocks, strict=True):
            self.copy(target, output[block], slot)
        self._num_partials = base + len(blocks)

    def gather(self) -> None:
        """Spread all blocks to all; maybe one rank gets its blocks of others in bundles."""
        late = self.random.randrange(self.n) if self.n > 2 and self.random.random() < 0.5 else None
        for me in self.random.sample(range(self.n), self.n):
            self.copy(me, output[me], input[0])
            self.spread(me, lambda _rank, me=me: output[me], but=late)  # type: ignore[misc]
        others = self.random.sample([rank for rank in range(self.n) if rank != late], self.n - 1)
        while late is not None and others:
            size = self.random.randint(1, len(others))
            source = self.random.choice([rank for rank in range(self.n) if rank != late])
            self.bundle(source, late, others[:size])
            others = others[size:]

    def write_blocks(self, collective: str, root: int | None) -> None:
        if collective == "all_gather":
            self.gather()
            return
        for me in self.random.sample(range(self.n), self.n):
            if collective == "reduce_scatter":
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
        yield from ((rank, chunk.scratch + slot) for slot in range(chunk.slots))
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
