"""What the proof says of random plans, and what the engine does with them, bit for bit.

`judge` runs plans symbolically: by the proof's rules, and by those of an engine whose lanes never
fill up, which also reduces what the proof forbids. The end of the second run is a tree of
reductions for every chunk. `Prediction` evaluates these trees with numpy, op by op, so a rank's
results must be those of the tree in every bit, whether the plan is right or wrong.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from random import Random

import numpy as np
import pytest
from oracle import REDUCING, Array, Collective
from placed_calls import PlacedCall, values_of
from random_plans import Drawn, changed, random_plans

from hccl_py import Communicator
from hccl_py.algorithms.choice.tuner import min_message_bytes
from hccl_py.algorithms.table import Algorithm
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES, Contract, Contribution
from hccl_py.plan.language import (
    Buffer,
    MalformedPlanError,
    Nodes,
    Plan,
    PlanBuilder,
    PlanError,
    data,
    output,
)
from hccl_py.plan.memory import Rounded, Value, Values
from hccl_py.plan.rendezvous import COPIED
from hccl_py.plan.simulate import Simulation
from hccl_py.plan.tiles import Cut
from hccl_py.plan.verify import verify

SHARES = ("all_gather", "reduce_scatter", "gather", "scatter")
"""Collectives whose input and output may share a block."""
COUNTS = ((0, 1, 7, 13), (200, 3000, 5001), (40_000, 70_001), (400_000,))
"""Fewer elements than chunks, one tile, several, many."""
CHANCES = (0.5, 0.3, 0.17, 0.03)
LARGE = (20_000, 70_001, 300_000)
"""Enough to be compressed."""


class AnyValues(Values):
    """Reduces and rounds whatever it is given."""

    def reduced(self, operands: Sequence[Value]) -> Value:
        ranks = reduce(int.__or__, (one.ranks for one in operands))
        value = Value(tuple(operands), operands[0].block, ranks)
        return self.setdefault(value.tree, value)

    def rounded(self, value: Value) -> Value:
        rounded = Rounded(value)
        return self.setdefault(rounded, Value(rounded, value.block, value.ranks))


class AnyEnd(Simulation):
    """The plans in an engine whose lanes have some room; above 1, it copies every message."""

    def __init__(self, drawn: Drawn, in_place: bool, room: int) -> None:
        super().__init__(drawn.plans, drawn.contract, in_place)
        self._values = AnyValues(self._values)
        self.room = room
        if room > 1:
            self._rendezvous = [[COPIED] * len(plan.ops) for plan in drawn.plans]

        self.plans, self.contract, self.next_ops = drawn.plans, drawn.contract, self._next
        self.stands_still = False


Ends = list[list[Value | None]]
"""By rank, the value of each chunk or block of its result; None if nothing was written."""


@dataclass(frozen=True)
class Judged:
    """Plans, and what becomes of them out of place (0) and in place (1).

    Attributes:
        malformed: a rank whose plan is wrong by itself.
        problems: of the proof; None: it accepts them.
        ends: what is left in an engine with least room; None: some rank never comes to its end, or
            a message is not received or does not fit.
        hangs: the op of each rank, if all wait for ever although lanes take two messages.
    """

    drawn: Drawn
    malformed: int | None
    problems: tuple[str | None, ...]
    ends: tuple[Ends | None, ...]
    hangs: tuple[list[int] | None, ...]

    @property
    def is_accepted(self) -> bool:
        return self.problems == (None, None)


def judge(drawn: Drawn) -> Judged:
    """Prove the plans, and run them to any end."""
    problems, ends, hangs = list[str | None](), list[Ends | None](), list[list[int] | None]()
    for in_place in (False, True):
        if in_place and drawn.contract.blocks is None:  # it always is
            problems, ends, hangs = problems * 2, ends * 2, hangs * 2
            break
        try:
            verify(drawn.plans, drawn.contract, in_place=in_place)
            problems.append(None)
        except MalformedPlanError as error:
            return Judged(drawn, error.rank, (str(error),) * 2, (None,) * 2, (None,) * 2)
        except PlanError as error:
            problems.append(str(error))
        run = AnyEnd(drawn, in_place, room=1)
        ends.append(_end(run) if is_done(run) else None)
        run = AnyEnd(drawn, in_place, room=2)
        hangs.append(None if is_done(run) or not run.stands_still else run.next_ops)
    return Judged(drawn, None, tuple(problems), tuple(ends), tuple(hangs))


def is_done(run: AnyEnd) -> bool:
    """Run the plans; return whether all ranks come to their ends and all messages fit."""
    try:
        run.run()
    except PlanError as error:
        run.stands_still = "deadlock" in str(error)
        return False
    return True


def _end(run: AnyEnd) -> Ends:
    buffer = data if run.contract.blocks is None else output
    return [
        [_held(run, plan.rank, buffer, block) for block in range(plan.shape[buffer])]
        for plan in run.plans
    ]


def _held(run: Simulation, rank: int, buffer: Buffer, block: int) -> Value | None:
    try:
        return run.memories[rank].read(buffer[block])[0]
    except ValueError:
        return None


def draw(seed: int, nodes: Nodes, way: str) -> Judged:
    """Draw plans for a way of calling, half of those that are wrong included; and judge them."""
    collectives = tuple(COLLECTIVES)
    if way == "compressed":
        collectives = ("all_reduce", "reduce_scatter")
    elif way == "reproducible":
        collectives = ("all_reduce", "reduce", "reduce_scatter")
    drawn = random_plans(
        seed,
        nodes,
        collectives,
        in_rank_order=way == "reproducible",
        one_by_one=way == "compressed" and seed % 8 > 0,
    )
    if seed % 4 == 0:
        drawn = changed(drawn, Random(seed))
    if way == "compressed":
        plans = tuple(compress_scale_out(plan, nodes) for plan in drawn.plans)
        drawn = replace(drawn, plans=plans)
    return judge(drawn)


def install(comm: Communicator, drawn: Drawn) -> None:
    """Have all calls of a communicator run a rank's plan, lowered as the product lowers it."""
    plan, plans = drawn.plans[comm.rank], comm._state.plans

    def write(_me: int, _n: int, builder: PlanBuilder) -> None:
        builder.repeat(plan)

    entry = Algorithm(
        write,
        data_chunks=lambda _: max(plan.shape.data_chunks, 1),
        max_span=lambda _: drawn.span,
        equal_blocks=drawn.contract.equal_blocks,
    )
    header = Plan(plan.collective, plan.algorithm, plan.rank, plan.world_size, plan.root)
    made = entry, plans._written(entry, header, compressed=False), range(65)
    plans._forget()
    plans._chosen = lambda *_: made  # type: ignore[method-assign]


class Prediction:
    """The bits of a rank's result: float32 is added where a collective reduces, else bytes are."""

    def __init__(self, judged: Judged, what: Collective, in_place: bool, nodes: Nodes) -> None:
        self._end, self._what = judged.ends[in_place], what
        self._known: dict[Value, Array] = {}
        self._places: list[Array] | None = None
        plan = judged.drawn.plans[0]
        self._unit = np.float32 if plan.collective in REDUCING else np.uint8
        item_bytes = self._unit().itemsize
        if parts := plan.shape.data_chunks:
            cut = Cut(
                parts, judged.drawn.span, plan.world_size, min_message_bytes(nodes), item_bytes
            )
            self._places = _places(cut, parts, (what.count or 0) * 4 // item_bytes)

    def compare(self, rank: int, got: Array) -> None:
        """Fail unless a rank's result is what its plan must leave."""
        assert self._end is not None
        ends = self._end[rank]
        begin, got = 0, got.view(self._unit)
        for block, value in enumerate(ends):
            if self._places is not None:
                part = got[self._places[block]]
            else:
                length = self._what.expected(rank)[block].nbytes // got.itemsize
                part = got[begin : begin + length]
                begin += length
            if value is not None:
                np.testing.assert_array_equal(
                    part.view(np.uint8),
                    self._evaluated(value).view(np.uint8),
                    f"rank {rank}, chunk {block}, which must hold {value}",
                )

    def _evaluated(self, value: Value) -> Array:
        tree = value.tree
        if isinstance(tree, Contribution):
            given = self._what.given(tree.rank)
            if self._places is None:
                return given[tree.block].view(self._unit)
            return given[0].view(self._unit)[self._places[tree.block]]
        known = self._known.get(value)
        if known is None:
            if isinstance(tree, Rounded):
                known = as_bfloat16(self._evaluated(tree.value))
            else:
                known = reduce(np.add, (self._evaluated(one) for one in tree))
            self._known[value] = known
        return known


def as_bfloat16(numbers: Array) -> Array:
    """Round to the nearest bfloat16, to even between two."""
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def _places(cut: Cut, parts: int, count: int) -> list[Array]:
    """The places of each chunk's elements, in all tiles."""
    tiles = cut.tiles(count)
    of_chunk: list[list[Array]] = [[] for _ in range(parts)]
    at = 0
    for tile in range(tiles.number):
        for part in range(parts):
            length = tiles.elements(tile, data[part])
            of_chunk[part].append(np.arange(at, at + length))
            at += length
    assert at == count
    return [np.concatenate(each) for each in of_chunk]


def run_barrier(comm: Communicator, late: int) -> tuple[float, float]:
    """Enter and leave a barrier, one rank later than the others; return both times."""
    if comm.rank == late:
        time.sleep(0.002)
    entered = time.monotonic()
    comm.barrier()
    return entered, time.monotonic()


def run_calls(
    comm: Communicator, judged: Judged, nodes: Nodes, way: str, random: Random
) -> list[tuple[float, float] | None]:
    """Make some calls of different sizes with judged plans; return the times of barriers.

    `random` is that of all ranks.
    """
    drawn = judged.drawn
    if judged.malformed is not None:
        if judged.malformed == comm.rank:
            with pytest.raises(ValueError, match="malformed plan"):
                install(comm, drawn)
        return []
    install(comm, drawn)
    collective = drawn.plans[0].collective
    if collective == "barrier":
        late = random.randrange(comm.world_size)
        return [] if judged.ends[False] is None else [run_barrier(comm, late)]
    made: list[tuple[float, float] | None] = []
    sizes = random.choices(COUNTS, CHANCES, k=2)
    counts = [random.choice(LARGE if way == "compressed" else size) for size in sizes]
    for count in counts:
        shape = random.choice(_shapes(drawn.contract, collective))
        if collective == "broadcast" and not judged.is_accepted:
            shape = "in place"  # apart, only the root brings anything
        in_place = "in place" in shape and collective in SHARES
        if judged.ends[in_place] is None:
            continue
        is_uneven = "lists" in shape and not drawn.contract.equal_blocks and way == "plain"
        takes = collective in ("all_gather", "all_to_all", "gather", "scatter")
        length = None if is_uneven and takes and random.random() < 0.5 else count
        what = collective_of(drawn.plans[0], length)
        placed = PlacedCall(what, comm.rank, shape)
        placed.run(comm)
        if judged.is_accepted:
            check(placed, rough=way == "compressed")
        if what.expected(comm.rank):
            got = [values_of(one) for one in placed._out[0][: len(what.expected(comm.rank))]]
            Prediction(judged, what, in_place, nodes).compare(comm.rank, np.concatenate(got))
        made.append(None)
    return made


def collective_of(plan: Plan, count: int | None) -> Collective:
    """Return a call that a plan serves; None: of uneven blocks."""
    return Collective(plan.collective, "float32", count, plan.world_size, root=plan.root or 0)


def check(placed: PlacedCall, *, rough: bool) -> None:
    """Compare with numpy's sum of float64; `rough`: of what was rounded to bfloat16 on its way."""
    if not rough:
        placed.check()
        return
    expected = placed.what.expected(placed._me)
    for got, right in zip(placed._out[0], expected, strict=False):
        bound = 2.0**-7 * 1.5 * placed.what.world_size
        np.testing.assert_allclose(values_of(got), right, rtol=0, atol=bound)


def _shapes(contract: Contract, collective: str) -> tuple[str, ...]:
    shapes = ("apart", "registered")
    if contract.blocks is None:
        return (*shapes, "in place")
    return (*shapes, "lists", *(("lists in place", "in place") if collective in SHARES else ()))
