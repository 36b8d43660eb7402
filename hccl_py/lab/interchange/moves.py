"""Plans from moves of chunks: what a file of others does, in an order in which it can be done.

A reader runs the file, and reports every copy, message and reduction here. Each makes a value that
later ones use. A message is received where it lands; if reductions use it, each of them receives it
instead, because a plan reduces nothing else. A value whose memory is written before its last use is
copied to scratch. The messages of a pair are sent in the order in which they are received.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Chunk, Op, OpKind, Plan, PlanError, data, input, output
from hccl_py.plan.limits import MOST_CHUNKS
from hccl_py.plan.verify import verify

Place = tuple[str, int]
"""A buffer (i, o, s) and a chunk in it. Here: i is what is only brought, o what is returned."""

_NOWHERE = "s", -1  # the place of a message that a reduction takes
_KEPT = 0.5  # a copy of a value is made so much later than the value
AFTERWARDS = 0.75
"""What is sent later, but before the next move, is sent so much after `Moves.now`."""


class _Content(NamedTuple):
    rank: int  # that brought it
    block: int
    piece: int


@dataclass(eq=False)
class Value:
    """The contents of a place: the reduction of `operands`, or what its rank brought.

    Attributes:
        time, gone: when it is written, and when its memory is written again.
        sent: when operands of other ranks leave them.
        is_received: it is a message that is received into its place.
    """

    rank: int
    place: Place
    content: _Content
    operands: tuple["Value", ...] = ()
    time: float = 0.0
    sent: float = 0.0
    gone: float = float("inf")
    is_received: bool = False

    @property
    def is_message(self) -> bool:
        """Whether it is the value of another rank."""
        return len(self.operands) == 1 and self.operands[0].rank != self.rank


class Moves:
    """The moves among all ranks in a collective.

    Args:
        chunks: of `data`; for a collective on blocks, the pieces of each block.
        in_place: input and output are the same memory.
    """

    def __init__(self, collective: str, n: int, chunks: int, *, in_place: bool) -> None:
        self._collective, self._n, self._in_place = collective, n, in_place
        self._on_data = COLLECTIVES[collective].blocks is None
        self._chunks, self._pieces = chunks, 1 if self._on_data else chunks
        self._parts = 1  # of a block in the plans: pieces that go the same way are one
        self._values: list[Value] = []
        self._held: dict[tuple[int, Place], Value] = {}
        self.now = 0.0

    def read(self, rank: int, place: Place) -> Value:
        """Return the value in a place of a file; ValueError: nothing was written there."""
        return self._value(rank, self._resolved(rank, place))

    def write(
        self, rank: int, place: Place, values: Sequence[Value], sent: float | None = None
    ) -> None:
        """Put the reduction of values into a place of a file.

        `sent`: when those of other ranks left them, as `now` was (now).
        """
        self.now = now = self.now + 1
        sent = now if sent is None else sent
        place, content = self._resolved(rank, place), values[0].content
        if any(value.content[1:] != content[1:] for value in values):
            raise ValueError(f"GPU {rank}: reduces different chunks into {place[0]}[{place[1]}]")
        operands = tuple(values)
        if len(values) > 1:  # a reduction takes what others have as a message
            operands = tuple(
                one if one.rank == rank else Value(rank, _NOWHERE, content, (one,), now, sent)
                for one in values
            )
        if self._on_data and place[0] == "o" and not self._in_place:
            self._value(rank, ("i", place[1])).gone = now  # both are `data`
        if (before := self._held.get((rank, place))) is not None:
            before.gone = now
        made = Value(rank, place, content, operands, now, sent)
        self._held[rank, place] = made
        self._values.append(made)

    def plans(self, name: str) -> tuple[Plan, ...]:
        """Return the plans; the caller proves them. ValueError: plans cannot express the moves."""
        self._check_pieces()
        results = 1 if self._collective == "reduce_scatter" else self._n
        firsts = range(0, self._chunks if self._on_data else results * self._pieces, self._pieces)
        ends = [("o", at + part) for at in firsts for part in range(self._parts)]
        places = [(rank, end) for rank in range(self._n) for end in ends]
        live = _live(self._values, [self._held[at] for at in places if at in self._held])
        # A plan has its own input, which a file in place has among its output from the beginning.
        own = [self._value(*at) for at in places if self._in_place and self._brought(*at)]
        own = [] if self._on_data else [one for one in own if not one.operands]
        for is_careful in (False, True):
            writing = _Writing(self._memory, live, self._n, is_careful)
            for one in own:
                to = output[self._index(one.place[1])]
                writing.add(0.0, one.rank, Op(OpKind.COPY, (), to, self._memory(one)))
            plans = tuple(
                replace(self._head(name, rank), ops=_joined(writing.ops(rank)))
                for rank in range(self._n)
            )
            try:
                verify(plans, COLLECTIVES[self._collective])
                break
            except PlanError:  # perhaps a rank waits for ever to write what it has sent
                continue
        return plans

    def _head(self, name: str, rank: int) -> Plan:
        head = Plan(self._collective, name, rank, self._n)
        chunks = self._chunks if self._on_data else self._parts
        return replace(head, shape=COLLECTIVES[self._collective].shape(head, chunks))

    def _resolved(self, rank: int, place: Place) -> Place:
        buffer, at = place
        if buffer not in ("i", "o", "s") or at < 0:
            raise ValueError(f"GPU {rank}: expected a buffer i, o or s, got {buffer!r}, chunk {at}")
        if not self._in_place or buffer != "i":
            return place
        if self._collective == "all_gather":
            return "o", rank * self._pieces + at
        if self._collective == "reduce_scatter":
            block, piece = divmod(at, self._pieces)
            return ("o", piece) if block == rank else place
        return "o", at

    def _value(self, rank: int, place: Place) -> Value:
        if (rank, place) not in self._held:
            if (content := self._brought(rank, place)) is None:
                buffer, at = place
                raise ValueError(f"GPU {rank}: {buffer}[{at}] is read before it is written")
            self._held[rank, place] = Value(rank, place, content)
            self._values.append(self._held[rank, place])
        return self._held[rank, place]

    def _brought(self, rank: int, place: Place) -> _Content | None:
        """Return what is in a place in the beginning."""
        (buffer, at), collective = place, self._collective
        block, piece = divmod(at, self._pieces)
        if buffer == "s" or (buffer == "o" and not self._in_place):
            return None
        if collective == "all_gather":
            return _Content(rank, rank, piece) if buffer == "i" or block == rank else None
        if collective == "reduce_scatter" and buffer == "o":
            return _Content(rank, rank, piece)
        return _Content(rank, block, piece)

    def _check_pieces(self) -> None:
        """Take pieces of a block that all go the same way together; else a plan cuts the block."""
        ways = [Counter[object]() for _ in range(self._pieces)]
        for one in self._values:
            buffer, at = one.place
            if buffer != "s" and at % self._pieces != one.content.piece:
                raise ValueError(f"GPU {one.rank}: {buffer}[{at}] gets another piece of its block")
            where = () if buffer == "s" else (buffer, at // self._pieces)
            sources = tuple(sorted(value.rank for value in one.operands))
            ways[one.content.piece][one.content[:2], one.rank, where, sources, one.is_message] += 1
        if all(way == ways[0] for way in ways):
            self._values = [one for one in self._values if not one.content.piece]
        else:
            self._parts = self._pieces

    def _index(self, at: int) -> int:
        """Return the chunk of a plan's blocks where a chunk of the file's is."""
        return at // self._pieces * self._parts + at % self._pieces

    def _memory(self, value: Value, slot: int | None = None) -> Chunk | None:
        """Return the memory of a value; None: it needs a slot of scratch, which may be given."""
        buffer, at = value.place
        owner, block, piece = value.content
        chunk = like = data[block] if self._on_data else input[block * self._parts + piece]
        if self._collective == "all_gather":
            chunk = input[piece]
        if self._collective == "all_gather" or (
            self._collective == "all_to_all" and block == value.rank
        ):
            like = output[owner * self._parts + piece]
        if slot is not None:
            return like._replace(scratch=slot)
        if not value.operands:
            return chunk
        if buffer != "o":
            return None
        return data[at] if self._on_data else output[self._index(at)]


def num_chunks(collective: str, n: int, counts: Sequence[int]) -> int:
    """Return the chunks of `data`, or the pieces of a block, from a file's chunks in and out.

    Raises:
        ValueError: they are none of this collective.
    """
    brought, returned = counts
    on_data = COLLECTIVES[collective].blocks is None
    most = max(brought, returned)
    chunks = most if on_data or most % n else most // n
    if not 1 <= chunks <= MOST_CHUNKS or (not on_data and most % n):
        raise ValueError(
            f"expected up to {MOST_CHUNKS} chunks, for blocks of {n} GPUs, got {brought} of input, "
            f"{returned} of output"
        )
    return chunks


def _live(values: Sequence[Value], results: Sequence[Value]) -> list[Value]:
    """Return the values that the results need, in order; mark messages received in place."""
    found, uses = set[Value](results), Counter[Value](results)
    for value in found:
        value.is_received = True
    for one in sorted(values, key=lambda value: value.time, reverse=True):
        if one in found:
            for operand in one.operands:
                operand.is_received |= len(one.operands) == 1
                read = (operand, *(operand.operands if operand.place == _NOWHERE else ()))
                found.update(read)
                uses.update(read)
    live = sorted(found, key=lambda value: value.time)
    for one in live:
        if len(one.operands) > 1:
            one.operands = tuple(_summands(one, uses))
            continue
        came = next(iter(one.operands), one)
        if came.is_message and came is not one and came.rank == one.rank and uses[came] == 1:
            # It is only copied from where it lands, so it lands there.
            one.operands, one.sent, one.is_received = came.operands, came.sent, True
            uses[came] = 0
    return [one for one in live if uses[one]]


def _summands(value: Value, uses: Counter[Value]) -> Iterator[Value]:
    """Return what a reduction reduces; one that is only reduced further is taken apart.

    So a sum that a file makes step by step is one sum in rank order, with the same bits everywhere.
    """
    for one in value.operands:
        if len(one.operands) > 1 and uses[one] == 1:
            uses[one] = 0
            for summand in one.operands:
                if summand.gone == one.time:  # nothing is written there now
                    summand.gone = one.gone
                yield summand
        else:
            yield one


class _Task(NamedTuple):
    """Make a value of one of its rank, if any, and of messages, reduced."""

    value: Value
    base: Value | None
    messages: list[Value]


class _Writing:
    """The ops of all ranks, each with its time.

    Args:
        live: the values that are needed, in order.
        is_careful: keep the source of a message until it is received, not until it leaves.

    Raises:
        ValueError: plans cannot express a reduction.
    """

    def __init__(
        self,
        memory: Callable[[Value, int | None], Chunk | None],
        live: Sequence[Value],
        n: int,
        is_careful: bool,
    ) -> None:
        self._memory = memory
        self._ops: list[list[tuple[float, Op]]] = [[] for _ in range(n)]
        self._slots: list[dict[object, int]] = [{} for _ in range(n)]  # by place or kept value
        lanes: dict[tuple[int, int], float] = {}  # when its last message leaves
        tasks, last = [_task(value) for value in live if _is_made(value)], dict[Value, float]()
        leave: list[list[float]] = []
        for value, base, messages in tasks:
            leave.append([])
            for one in messages:
                lane = one.operands[0].rank, value.rank
                lanes[lane] = max(one.sent, lanes.get(lane, 0.0))
                leave[-1].append(lanes[lane])
                needed = value.time if is_careful else lanes[lane]
                last[one.operands[0]] = max(needed, last.get(one.operands[0], 0.0))
            if base is not None:
                last[base] = max(value.time, last.get(base, 0.0))
        self._kept = {one for one in live if last.get(one, 0.0) > one.gone}
        for one in live:
            if one in self._kept:
                op = Op(OpKind.COPY, (), self._slot(one, one), self._chunk(one))
                self.add(one.time + _KEPT, one.rank, op)
        for task, times in zip(tasks, leave, strict=True):
            self._write(*task, times)

    def add(self, time: float, rank: int, op: Op) -> None:
        """Add an op; those of one time stay in order."""
        self._ops[rank].append((time, op))

    def ops(self, rank: int) -> list[Op]:
        """Return the ops of a rank, in the order of time."""
        return [op for _, op in sorted(self._ops[rank], key=lambda one: one[0])]

    def _write(
        self, value: Value, base: Value | None, messages: list[Value], leave: list[float]
    ) -> None:
        rank, to = value.rank, self._chunk(value)
        if base is not None and (source := self._chunk(base, value.time)) != to:
            self.add(value.time, rank, Op(OpKind.COPY, (), to, source))
        for at, (message, time) in enumerate(zip(messages, leave, strict=True)):
            (sent,) = message.operands
            source = self._chunk(sent, value.time)
            self.add(time, sent.rank, Op(OpKind.SEND, (rank,), None, source))
            kind = OpKind.RECV_REDUCE if at or base is not None else OpKind.RECV
            self.add(value.time, rank, Op(kind, (sent.rank,), to))

    def _chunk(self, value: Value, until: float = 0.0) -> Chunk:
        """Return where a value is, or its copy if it is needed after its memory is written."""
        if until > value.gone and value in self._kept:
            return self._slot(value, value)
        return self._memory(value, None) or self._slot(value, value.place)

    def _slot(self, value: Value, key: object) -> Chunk:
        slots = self._slots[value.rank]
        found = self._memory(value, slots.setdefault(key, len(slots)))
        assert found is not None
        return found


def _is_made(value: Value) -> bool:
    """Return whether a plan makes it: a rank brings others, or reductions receive them."""
    return bool(value.operands) and (value.is_received or not value.is_message)


def _task(value: Value) -> _Task:
    if len(value.operands) == 1:
        return (
            _Task(value, None, [value]) if value.is_message else _Task(value, *value.operands, [])
        )
    messages = [one for one in value.operands if one.is_message]
    own = [one for one in value.operands if not one.is_message]
    if not own:  # the first one is received, or is already there
        there = next((one for one in messages if one.is_received), None)
        return _Task(value, there, [one for one in messages if one is not there])
    # Plans reduce messages only, so what was copied from a message is sent again.
    for one in own[1:]:
        while len(one.operands) == 1 and not one.is_message:
            (one,) = one.operands
        if not one.is_message:
            raise ValueError(
                f"GPU {value.rank}: reduces chunks that it has itself into {value.place[0]}"
                f"[{value.place[1]}]; a plan reduces what it receives"
            )
        messages.append(one)
    return _Task(value, own[0], messages)


def _joined(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Join sends of one chunk, and reductions into one: their sum is then in rank order."""
    found = list[Op]()
    for op in ops:
        last = found[-1] if found else op
        is_more = found and op.kind is last.kind and op.kind in (OpKind.SEND, OpKind.RECV_REDUCE)
        if is_more and last[2:4] == op[2:4] and not {*op.peers} & {*last.peers}:
            found[-1] = last._replace(peers=tuple(sorted(last.peers + op.peers)))
        else:
            found.append(op)
    return tuple(found)
