"""The rules that one op has to keep by itself: its peers, its ranges, its use of buffers.

`verify` checks them in tests. `Plan::validate` in C++ checks them again before a plan runs.
"""

from hccl_py.plan.chunks import BufferName, Chunk
from hccl_py.plan.errors import PlanError
from hccl_py.plan.ops import Op, OpKind, Plan


def check_op(plan: Plan, index: int, op: Op) -> None:
    """Check peers, ranges and the use of buffers of one op.

    Args:
        plan: whose rank, world size and shape count; its ops are not looked at.
        index: place of the op in the plan, for the message.
        op: the op.

    Raises:
        PlanError: naming what is wrong.
    """
    problem = (
        _peers_problem(plan, op)
        or _sides_problem(op)
        or _chunk_problem(plan, op.dst)
        or _chunk_problem(plan, op.src)
    )
    if problem:
        raise PlanError(plan.rank, index, f"`{op}`: {problem}")


def _peers_problem(plan: Plan, op: Op) -> str | None:
    kind, peers = op.kind, op.peers
    if kind is OpKind.COPY:
        return "a copy has no peers" if peers else None
    if not peers:
        return "no peers"
    if min(peers) < 0 or max(peers) >= plan.world_size:
        return f"a peer of {peers} is outside 0..{plan.world_size - 1}"
    if plan.rank in peers:
        return "a rank cannot be its own peer; use copy"
    if len(peers) == 1:
        return None
    if kind is OpKind.RECV:
        return "a recv has exactly one peer"
    if len(set(peers)) != len(peers):
        return "a peer is named twice"
    if kind is OpKind.RECV_REDUCE and list(peers) != sorted(peers):
        return "the peers of a recv_reduce stand in rank order, for that is how it reduces"
    return None


def _sides_problem(op: Op) -> str | None:
    needs_dst = op.kind is not OpKind.SEND
    needs_src = op.kind in (OpKind.SEND, OpKind.COPY)
    if (op.dst is not None) != needs_dst or (op.src is not None) != needs_src:
        return "a send has a source, a receive a destination, a copy both"
    if op.dst is not None and op.dst.buffer is BufferName.INPUT and op.dst.scratch is None:
        return "input is read only"
    return None


def _chunk_problem(plan: Plan, chunk: Chunk | None) -> str | None:
    if chunk is None:
        return None
    parts = plan.shape.parts(chunk.buffer)
    if not 0 <= chunk.begin < chunk.end <= parts:
        return f"{chunk} is empty or outside {chunk.buffer.name.lower()}[0:{parts}]"
    if chunk.end != chunk.begin + 1 and chunk.buffer is not BufferName.DATA:
        return f"a chunk of {chunk.buffer.name.lower()} is one whole block"
    if chunk.scratch is not None and chunk.scratch < 0:
        return f"scratch slot {chunk.scratch} is negative"
    return None
