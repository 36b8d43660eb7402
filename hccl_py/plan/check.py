"""What can be said about one op alone. The builder asks at once, `verify` asks again.

Both ask because a builder's error points at the line of the algorithm, and because `verify` must
not trust where a plan came from.
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
    problem = _peers_problem(plan, op) or _sides_problem(op)
    for chunk in (op.dst, op.src):
        if chunk is not None:
            problem = problem or _chunk_problem(plan, chunk)
    if problem:
        raise PlanError(plan.rank, index, f"`{op}`: {problem}")


def _peers_problem(plan: Plan, op: Op) -> str | None:
    for peer in op.peers:
        if not 0 <= peer < plan.world_size:
            return f"peer {peer} is outside 0..{plan.world_size - 1}"
        if peer == plan.rank:
            return "a rank cannot be its own peer; use copy"
    if len(set(op.peers)) != len(op.peers):
        return "a peer is named twice"
    if op.kind is OpKind.COPY and op.peers:
        return "a copy has no peers"
    if op.kind is OpKind.RECV and len(op.peers) != 1:
        return "a recv has exactly one peer"
    if op.kind is not OpKind.COPY and not op.peers:
        return "no peers"
    if op.kind is OpKind.RECV_REDUCE and list(op.peers) != sorted(op.peers):
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


def _chunk_problem(plan: Plan, chunk: Chunk) -> str | None:
    name = chunk.buffer.name.lower()
    parts = plan.shape.parts(chunk.buffer)
    if not 0 <= chunk.begin < chunk.end <= parts:
        return f"{chunk} is empty or outside {name}[0:{parts}]"
    if chunk.buffer is not BufferName.DATA and chunk.end != chunk.begin + 1:
        return f"a chunk of {name} is one whole block"
    if chunk.scratch is not None and chunk.scratch < 0:
        return f"scratch slot {chunk.scratch} is negative"
    return None
