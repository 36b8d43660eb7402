"""A plan as rows of integers, the form that the C++ engine runs; and the one partition.

A row is `(kind, peers_begin, peers_count, dst_buffer, dst_begin, dst_end, dst_scratch, src_buffer,
src_begin, src_end, src_scratch, keeps_old)`. Kinds and buffers are the numbers of `OpKind` and
`BufferName`; begin and end count chunks; scratch -1 is the range itself, k >= 0 slot k with the
range's length. A side that the op does not have is zeros with scratch -1. What keeps_old and the
first messages are for says `agreement.py`.
"""

from dataclasses import dataclass

from hccl_py.plan.agreement import Agreement
from hccl_py.plan.chunks import BufferName, Chunk
from hccl_py.plan.ops import Plan

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoweredPlan:
    """What the engine gets.

    Attributes:
        ops: the rows.
        peers: peers of all ops, flat; a row says where its own begin and how many they are.
        first_messages: pairs of an op and a peer.
        data_chunks: into how many chunks `data` is partitioned.
        input_blocks: number of input blocks of this rank.
        output_blocks: number of output blocks of this rank.
        scratch_slots: number of scratch slots.
        max_chunk_span: most chunks of `data` that one op of this rank names. Tiles, which must be
            the same everywhere, are sized by the largest of all ranks.
    """

    ops: tuple[Row, ...]
    peers: tuple[int, ...]
    first_messages: tuple[tuple[int, int], ...]
    data_chunks: int
    input_blocks: int
    output_blocks: int
    scratch_slots: int
    max_chunk_span: int


def lower(plan: Plan, agreement: Agreement) -> LoweredPlan:
    """Turn a plan into rows."""
    rows: list[Row] = []
    peers: list[int] = []
    named = [chunk for op in plan.ops for chunk in (op.dst, op.src) if chunk is not None]
    for index, op in enumerate(plan.ops):
        sides = (*_side(op.dst), *_side(op.src))
        keeps_old = int(index in agreement.unsure)
        rows.append((int(op.kind), len(peers), len(op.peers), *sides, keeps_old))
        peers.extend(op.peers)
    spans = [chunk.end - chunk.begin for chunk in named if chunk.buffer is BufferName.DATA]
    return LoweredPlan(
        ops=tuple(rows),
        peers=tuple(peers),
        first_messages=agreement.first_messages,
        data_chunks=plan.shape.data_chunks,
        input_blocks=plan.shape.input_blocks,
        output_blocks=plan.shape.output_blocks,
        scratch_slots=1 + max((c.scratch for c in named if c.scratch is not None), default=-1),
        max_chunk_span=max(spans, default=0),
    )


def _side(chunk: Chunk | None) -> Row:
    if chunk is None:
        return (0, 0, 0, -1)
    scratch = -1 if chunk.scratch is None else chunk.scratch
    return (int(chunk.buffer), chunk.begin, chunk.end, scratch)


def partition(count: int, parts: int) -> tuple[int, ...]:
    """Cut `count` elements as evenly as possible.

    Returns:
        The first element of every part, and `count` at the end. The first `count % parts` parts are
        one element longer; parts are empty where there are more parts than elements.
    """
    return tuple(_begin(count, parts, part) for part in range(parts + 1))


def range_of(count: int, parts: int, begin: int, end: int) -> tuple[int, int]:
    """Return the elements, first and one past the last, of the parts `begin` to `end`."""
    return _begin(count, parts, begin), _begin(count, parts, end)


def _begin(count: int, parts: int, part: int) -> int:
    size, longer = divmod(count, parts)
    return part * size + min(part, longer)
