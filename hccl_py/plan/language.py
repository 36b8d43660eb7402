"""The language of plans: buffers, chunks, four kinds of op, and the builder that writes them.

No bytes and no element types here: `lower.py` gives the numbers of a chunk their meaning.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice
from operator import index
from typing import NamedTuple

MOST_OPS = 1 << 19
"""Limit of ops and of steps in one plan, for functions that do not end."""

_OPEN_END = sys.maxsize  # of a range such as `data[:]`, until the builder closes it

Nodes = tuple[tuple[int, ...], ...]
"""The ranks of every node, in order of local rank."""


class Fault(NamedTuple):
    """The wrong contributions to a block, as bit masks of ranks."""

    block: int
    missing: int = 0
    twice: int = 0


class PlanError(ValueError):
    """A plan that cannot run, or violates its collective's postcondition."""

    def __init__(
        self, rank: int, op_index: int | None, message: str, fault: Fault | None = None
    ) -> None:
        place = f"rank {rank}" if op_index is None else f"rank {rank}, op {op_index}"
        super().__init__(f"{place}: {message}")
        self.fault = fault  # None: no contribution is wrong
        self.rank = rank  # the plan's rank
        self.op_index = op_index  # index of the wrong op; None if it is not a single one


class MalformedPlanError(PlanError):
    """A plan that is invalid by itself, whatever the others do."""


class Buffer(IntEnum):
    """A buffer of a collective, with the engine's number; indexing it names a chunk of it."""

    DATA = 0  # of a collective in place, cut into as many chunks as the algorithm's entry says
    INPUT = 1  # the blocks that a rank brings; read only
    OUTPUT = 2  # the blocks that a rank gets

    def __getitem__(self, key: int | slice) -> "Chunk":
        """Name chunk `key`, or a contiguous range of chunks: `data[2]`, `data[0:4]`, `data[:]`."""
        # A plan among thousands of ranks has thousands of chunks: bypass both constructors.
        if isinstance(key, int) and key >= 0:
            return tuple.__new__(Chunk, (self, key, key + 1, None))
        at = key if isinstance(key, slice) else slice(index(key), index(key) + 1)
        begin, end = index(at.start or 0), _OPEN_END if at.stop is None else index(at.stop)
        # No negative index, so that a neighbour computed without `% n` cannot wrap silently.
        if begin < 0 or end < 0 or at.step not in (None, 1):
            raise IndexError(f"{self.name.lower()}[{key}]: chunks count up from 0, one by one")
        return Chunk(self, begin, end)


data, input, output = Buffer


class Chunk(NamedTuple):
    """A range of chunks of a buffer, or scratch with the length of such a range.

    A range of `data` is one slot of scratch. A range of blocks is one slot per block, in a row, so
    that one message carries several blocks; it exists only in scratch, for blocks of one length.
    """

    buffer: Buffer
    begin: int
    end: int  # one past the last chunk
    scratch: int | None = None  # None: the range itself; k: scratch from slot k on

    @property
    def slots(self) -> int:
        """Number of its slots in scratch."""
        return 1 if self.buffer is Buffer.DATA else self.end - self.begin

    def __str__(self) -> str:
        text = f"{self.buffer.name.lower()}[{_spelt(self.begin, self.end)}]"
        if self.scratch is None:
            return text
        return f"scratch[{_spelt(self.scratch, self.scratch + self.slots)}] like {text}"


def _spelt(begin: int, end: int) -> str:
    return f"{begin}" if end == begin + 1 else f"{begin}:{end}"


class OpKind(IntEnum):
    """The four kinds of op, with the numbers that the engine uses."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3


SEND, RECV, RECV_REDUCE, COPY = OpKind


class Op(NamedTuple):
    """One step of a rank. A send has `src`, a receive has `dst`, a copy has both and no peers.

    A compressed peer is rendered as `3~`.
    """

    kind: OpKind
    peers: tuple[int, ...] = ()
    dst: Chunk | None = None
    src: Chunk | None = None
    compressed: tuple[int, ...] = ()  # the peers whose messages are compressed

    @property
    def written(self) -> Chunk | None:
        """The chunk that it changes: `dst`, or the `data` that a compressed send rounds."""
        src = self.src
        if src is None or not self.compressed:
            return self.dst
        return src if src.buffer is Buffer.DATA and src.scratch is None else None

    def __str__(self) -> str:
        peers = " ".join(
            f"{peer}~" if peer in self.compressed else f"{peer}" for peer in self.peers
        )
        if self.kind is OpKind.SEND:
            return f"send {self.src} to {peers}"
        if self.kind is OpKind.COPY:
            return f"copy {self.src} to {self.dst}"
        return f"{self.kind.name.lower()} {self.dst} from {peers}"


class Shape(NamedTuple):
    """The number of chunks of a rank's buffers: of `data`, or of all its blocks.

    Each block is cut into `block_parts` chunks: part j of block b is `output[b * block_parts + j]`.
    """

    data_chunks: int = 0
    input_blocks: int = 0
    output_blocks: int = 0
    block_parts: int = 1

    @property
    def chunks(self) -> int:
        """Number of chunks of `data`, or of each block."""
        return self.data_chunks or self.block_parts


@dataclass(frozen=True, slots=True)
class Plan:
    """The ops of one rank in one collective, in order: no bytes, no dtype, no reduce op."""

    collective: str
    algorithm: str
    rank: int
    world_size: int
    root: int | None = None  # of a rooted collective
    shape: Shape = Shape()
    ops: tuple[Op, ...] = ()  # each blocks until it is done; a send completes in the background
    # Ends of its steps, as numbers of ops; empty if the algorithm declares none.
    steps: tuple[int, ...] = ()

    @property
    def span(self) -> int:
        """Most chunks in one op."""
        chunks = [chunk for op in self.ops for chunk in (op.dst, op.src) if chunk is not None]
        return max((chunk.end - chunk.begin for chunk in chunks), default=1)

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        chunks = f", {self.shape.data_chunks} chunks" if self.shape.data_chunks else ""
        if self.shape.block_parts > 1:
            chunks = f", blocks in {self.shape.block_parts} parts"
        head = f"{self.collective}/{self.algorithm}, rank {self.rank} of {self.world_size}"
        width = len(str(len(self.ops)))
        lines = [f"{index:>{width}}  {op}" for index, op in enumerate(self.ops)]
        return "\n".join([f"{head}{root}{chunks}", *lines])


class PlanBuilder:
    """Collects the ops of one rank; has the root and the nodes.

    Ops without peers are dropped, so that algorithms need no special case for one rank.
    """

    def __init__(self, header: Plan, nodes: Nodes) -> None:
        self.nodes = nodes
        self._header = header
        self._ops: list[Op] = []
        self._steps: list[int] = []

    @property
    def root(self) -> int:
        """The root of a rooted collective."""
        if self._header.root is None:
            raise PlanError(self._header.rank, None, f"{self._header.collective} has no root")
        return self._header.root

    def send(self, peers: Iterable[int], chunk: Chunk) -> None:
        """Send `chunk` to each peer: one work request, which completes in the background."""
        if everyone := self._ranks(peers):
            # Bypasses the constructor, as in Buffer.__getitem__.
            self._add(tuple.__new__(Op, (SEND, everyone, None, self._closed(chunk), ())))

    def recv(self, peer: int, chunk: Chunk) -> None:
        """Put the next message of `peer` into `chunk`."""
        self._add(tuple.__new__(Op, (RECV, (index(peer),), self._closed(chunk), None, ())))

    def recv_reduce(self, peers: Iterable[int], chunk: Chunk) -> None:
        """Make `chunk` the reduction, in rank order, of itself and the peers' next messages."""
        if everyone := tuple(sorted(self._ranks(peers))):
            self._add(Op(RECV_REDUCE, everyone, self._closed(chunk)))

    def copy(self, dst: Chunk, src: Chunk) -> None:
        """Copy `src` to `dst` on this rank."""
        self._add(Op(COPY, (), self._closed(dst), self._closed(src)))

    def end_step(self) -> None:
        """End a step, in which each pair of ranks sends and receives at most one message.

        In a step, sends precede other ops. All ranks have the same number of steps, some perhaps
        without ops, and the last one ends with the plan. Steps let the engine run small calls among
        the ranks of a node faster.
        """
        self._check_number(len(self._steps), "steps")
        self._steps.append(len(self._ops))

    def repeat(self, plan: Plan) -> None:
        """Write the ops and steps of a plan that this rank wrote before."""
        self._ops += plan.ops
        self._steps += plan.steps

    def scratch(self, slot: int, like: Chunk) -> Chunk:
        """Name a slot of the engine's temporary memory, as long as `like`.

        Slots count from 0; a slot is used again by naming it again. A range of blocks names the
        slots from this one on.
        """
        return self._closed(like)._replace(scratch=index(slot))

    def finish(self) -> Plan:
        """Return the plan."""
        return replace(self._header, ops=tuple(self._ops), steps=tuple(self._steps))

    def _add(self, op: Op) -> None:
        if len(self._ops) >= MOST_OPS:
            self._check_number(len(self._ops), "ops")
        self._ops.append(op)

    def _check_number(self, number: int, what: str) -> None:
        if number >= MOST_OPS:
            problem = f"expected at most {MOST_OPS} {what} of a plan, got more; does it end?"
            raise PlanError(self._header.rank, None, problem)

    def _ranks(self, peers: Iterable[int]) -> tuple[int, ...]:
        """Read at most one peer too many: `peers` may be endless."""
        return tuple(map(index, islice(peers, self._header.world_size)))

    def _closed(self, chunk: Chunk) -> Chunk:
        if chunk.end != _OPEN_END:
            return chunk
        return chunk._replace(end=self._header.shape[chunk.buffer])
