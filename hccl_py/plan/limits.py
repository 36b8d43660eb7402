"""Limits of a plan: what the engine can run, and what can be proved in time.

docs/internals/algorithms.md lists these numbers. The limit of ops is in `language.py`.
"""

from collections.abc import Sequence

from hccl_py.plan.language import Chunk, MalformedPlanError, Plan
from hccl_py.plan.tiles import slot_bytes

MOST_RANKS = 4096
MOST_CHUNKS = 1 << 16
"""Most chunks of `data`, or of a block."""

MOST_SCRATCH = 1024
"""Messages that fit the scratch of a rank: each takes a slot of the engine on every channel."""

_LARGEST_ITEM_BYTES = 8  # a complex number is reduced as its two parts


def most_span(world_size: int) -> int:
    """Return the most chunks of an op: one element of each must fit a message."""
    return slot_bytes(world_size) // _LARGEST_ITEM_BYTES


def check_limits(plans: Sequence[Plan]) -> None:
    """Raise MalformedPlanError if plans, one per rank, exceed the engine's limits."""
    n, shape = len(plans), plans[0].shape
    if n > MOST_RANKS:
        raise MalformedPlanError(0, None, f"expected at most {MOST_RANKS} ranks, got {n}")
    if shape.chunks > MOST_CHUNKS:
        of = "data" if shape.data_chunks else "a block"
        raise MalformedPlanError(
            0, None, f"expected at most {MOST_CHUNKS} chunks of {of}, got {shape.chunks}"
        )
    # Blocks that share a message share a slot of the engine.
    most_slots = MOST_SCRATCH * (1 if shape.data_chunks else max(plan.span for plan in plans))
    for plan in plans:
        for index, op in enumerate(plan.ops):
            for chunk in filter(None, (op.dst, op.src)):
                if problem := _problem(chunk, n, most_slots):
                    raise MalformedPlanError(plan.rank, index, f"`{op}`: {problem}")


def _problem(chunk: Chunk, n: int, most_slots: int) -> str:
    if chunk.end - chunk.begin > most_span(n):
        span = chunk.end - chunk.begin
        return f"expected at most {most_span(n)} chunks in an op among {n} ranks, got {span}"
    if chunk.scratch is not None and chunk.scratch + chunk.slots > most_slots:
        slots = chunk.scratch + chunk.slots
        return f"expected at most {most_slots} slots of scratch, got {slots}"
    return ""
