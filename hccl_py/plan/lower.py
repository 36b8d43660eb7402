"""A plan as rows of integers, the form that the C++ engine runs.

A row is `(kind, peers_begin, peers_count, dst_buffer, dst_begin, dst_end, dst_scratch, src_buffer,
src_begin, src_end, src_scratch, rendezvous)`. Kinds and buffers are the numbers of `OpKind` and
`Buffer`; begin and end count chunks; scratch -1 is the range itself, k >= 0 the slots from k on
with the range's length. A side that the op does not have is zeros with scratch -1. `rendezvous.py`
computes the last number.

A copy to the destination of the next `recv_reduce` has no row of its own: the `recv_reduce` then
has a source, its own rank's operand. That saves a pass over the data.
"""

from itertools import pairwise
from typing import NamedTuple

from hccl_py.plan.language import COPY, RECV_REDUCE, Chunk, Plan
from hccl_py.plan.rendezvous import rendezvous

Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int]


class LoweredPlan(NamedTuple):
    """A plan as the engine reads it."""

    ops: tuple[Row, ...]
    peers: tuple[int, ...]  # of all ops, flat; a row has the begin and number of its own
    compressed: tuple[bool, ...]  # for each of `peers`; empty if none is
    steps: tuple[int, ...]  # ends of its steps, as numbers of ops
    data_chunks: int  # number of chunks of `data`
    block_parts: int  # number of chunks of each block
    scratch_slots: int


def lower(plan: Plan) -> LoweredPlan:
    """Turn a plan into rows."""
    rows: list[Row] = []
    peers: list[int] = []
    scratch_slots = 0
    ways = rendezvous(plan.ops)
    # By index of a copy to the destination of the next reduction.
    parts = {
        index: op.src
        for index, (op, following) in enumerate(pairwise(plan.ops))
        if op.kind is COPY
        and (following.kind, following.dst) == (RECV_REDUCE, op.dst)
        and index + 1 not in plan.steps
    }
    for index, ((kind, op_peers, dst, src, _), way) in enumerate(zip(plan.ops, ways, strict=True)):
        for chunk in (dst, src):
            if chunk is not None and chunk.scratch is not None:
                scratch_slots = max(scratch_slots, chunk.scratch + chunk.slots)
        if index in parts:
            continue
        dst_side, src_side = _side(dst), _side(parts.get(index - 1, src))
        rows.append((int(kind), len(peers), len(op_peers), *dst_side, *src_side, way))
        peers += op_peers
    steps = tuple(end - sum(index < end for index in parts) for end in plan.steps)
    compressed: tuple[bool, ...] = ()
    if any(op.compressed for op in plan.ops):
        compressed = tuple(peer in op.compressed for op in plan.ops for peer in op.peers)
    sizes = plan.shape.data_chunks, plan.shape.block_parts, scratch_slots
    return LoweredPlan(tuple(rows), tuple(peers), compressed, steps, *sizes)


def _side(chunk: Chunk | None) -> tuple[int, int, int, int]:
    if chunk is None:
        return (0, 0, 0, -1)
    buffer, begin, end, scratch = chunk
    return (int(buffer), begin, end, -1 if scratch is None else scratch)
