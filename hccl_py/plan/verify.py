"""The proof that plans, one per rank, fulfil their collective's contract and cannot hang."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from hccl_py.plan.contracts import Contract, Contribution, Total
from hccl_py.plan.language import (
    Buffer,
    Chunk,
    Fault,
    MalformedPlanError,
    Op,
    OpKind,
    Plan,
    PlanError,
)
from hccl_py.plan.limits import check_limits
from hccl_py.plan.memory import Memory, Value, listed
from hccl_py.plan.simulate import Simulation


def verify(
    plans: Sequence[Plan],
    contract: Contract,
    *,
    in_place: bool = False,
    watch: Callable[[Callable[[], str]], object] = lambda _: None,
) -> None:
    """Prove the plans of one collective, for all ranks and all timings.

    The proof covers: ranges are in bounds and input is never written; sends and receives match in
    order and length; no deadlock with room for one message per lane; every message received; the
    postcondition; every contribution counted exactly once; a total held by several ranks reduced in
    the same order everywhere, hence the same bits.

    Two blocks have the same length only if the contract says so, so a message and its receive
    always name the same elements: a plan stays correct when the engine skips empty blocks.

    Plan i belongs to rank i. `in_place` proves it for callers whose input and output overlap as the
    contract allows. `watch` receives functions that return the progress. Raise PlanError with rank,
    op and problem.
    """
    first, n = plans[0], len(plans)
    watch(lambda: "ops are looked at")
    if (first.root is not None) != contract.rooted:
        raise PlanError(0, None, f"root {first.root} in {contract.name}")
    for rank, plan in enumerate(plans):
        expected = Plan(contract.name, first.algorithm, rank, n, first.root)
        expected = replace(expected, shape=contract.shape(expected, first.shape.chunks))
        if replace(plan, ops=(), steps=()) != expected:
            got = replace(plan, ops=(), steps=())
            raise PlanError(rank, None, f"is {got!r}, expected {expected!r}")
    check_limits(plans)
    for plan in plans:
        for index, op in enumerate(plan.ops):
            check_op(plan, index, op)
    _check_steps(plans)
    simulation = Simulation(plans, contract, in_place)
    watch(simulation.progress)
    simulation.run()
    _check_promises(plans, contract, simulation)


def check_op(plan: Plan, index: int, op: Op) -> None:
    """Check the rules for a single op; `Plan::validate` in C++ has the same rules."""
    kind, peers, n = op.kind, op.peers, plan.world_size
    needed = (kind is not OpKind.SEND, kind in (OpKind.SEND, OpKind.COPY))
    writes_input = op.dst is not None and op.dst.scratch is None and op.dst.buffer is Buffer.INPUT
    broken = {
        "a copy has no peers": kind is OpKind.COPY and peers,
        "no peers": kind is not OpKind.COPY and not peers,
        f"a peer of {peers} is outside 0..{n - 1}": (
            min(peers, default=0) < 0 or max(peers, default=0) >= n
        ),
        "a rank cannot be its own peer; use copy": plan.rank in peers,
        "ranks and chunks are whole numbers": not all(
            type(number) is int for number in (*peers, *_numbers(op.dst), *_numbers(op.src))
        ),
        "a recv has exactly one peer": kind is OpKind.RECV and len(peers) > 1,
        "a peer is named twice": len(set(peers)) != len(peers),
        "the peers of a recv_reduce stand in rank order, for that is how it reduces": (
            kind is OpKind.RECV_REDUCE and list(peers) != sorted(peers)
        ),
        "a send has a source, a receive a destination, a copy both": (
            (op.dst is not None, op.src is not None) != needed
        ),
        "input is read only": writes_input,
        "a compressed peer is none of the op's": not set(op.compressed) <= set(peers),
        "a send is compressed for all of its peers or for none": (
            kind is OpKind.SEND and len(op.compressed) not in (0, len(peers))
        ),
        "a compressed message is one chunk": (
            op.compressed and any(c and c.end - c.begin > 1 for c in (op.dst, op.src))
        ),
    }
    problems = [problem for problem, is_broken in broken.items() if is_broken]
    for chunk in filter(None, (op.dst, op.src)):
        parts, name = plan.shape[chunk.buffer], chunk.buffer.name.lower()
        if not 0 <= chunk.begin < chunk.end <= parts:
            problems.append(f"{chunk} is empty or outside {name}[0:{parts}]")
        if chunk.slots > 1 and chunk.scratch is None:
            problems.append(f"a chunk of {name} is one block or part, or several in scratch")
        if chunk.scratch is not None and chunk.scratch < 0:
            problems.append(f"scratch slot {chunk.scratch} is negative")
    if problems:
        raise MalformedPlanError(plan.rank, index, f"`{op}`: {problems[0]}")


def _numbers(chunk: Chunk | None) -> tuple[int, ...]:
    return () if chunk is None else (chunk.begin, chunk.end, chunk.scratch or 0)


def _check_steps(plans: Sequence[Plan]) -> None:
    num_steps = len(plans[0].steps)
    sent: list[set[tuple[int, int]]] = [set() for _ in range(num_steps)]
    received: list[set[tuple[int, int]]] = [set() for _ in range(num_steps)]
    for rank, plan in enumerate(plans):
        if len(plan.steps) != num_steps:
            message = f"takes {len(plan.steps)} steps, rank 0 {num_steps}"
            raise PlanError(rank, None, message)
        if plan.steps and plan.steps[-1] != len(plan.ops):
            raise PlanError(rank, plan.steps[-1], "stands behind the last step")
        for step, (begin, end) in enumerate(pairwise((0, *plan.steps))):
            has_begun = False
            for index in range(begin, end):
                op = plan.ops[index]
                if op.kind is OpKind.SEND and has_begun:
                    raise PlanError(rank, index, f"`{op}` is no send at the begin of its step")
                has_begun |= op.kind is not OpKind.SEND
                for peer in op.peers:
                    is_send = op.kind is OpKind.SEND
                    messages = sent[step] if is_send else received[step]
                    message_of = (rank, peer) if is_send else (peer, rank)
                    if message_of in messages:
                        raise PlanError(rank, index, f"`{op}` is the second with rank {peer}")
                    messages.add(message_of)
    for step in range(num_steps):
        for source, target in sorted(sent[step] ^ received[step]):
            problem = f"step {step}: rank {source} sends to {target} or {target} receives, not both"
            raise PlanError(source, None, problem)


def _check_promises(plans: Sequence[Plan], contract: Contract, simulation: Simulation) -> None:
    totals: dict[int, Value] = {}
    buffer = Buffer.DATA if contract.blocks is None else Buffer.OUTPUT
    for plan, memory, origins in zip(plans, simulation.memories, simulation.origins, strict=True):
        if contract.meets and origins != (1 << plan.world_size) - 1:
            raise PlanError(plan.rank, None, "finishes before it received from every rank")
        for block in range(plan.shape[buffer]):
            chunk = buffer[block]
            problem, missing = _broken_promise(plan, contract, memory, chunk, totals)
            if problem:
                writer = memory.last_writer.get(memory.places(chunk)[0])
                promise = contract.promise(plan, block)
                fault = Fault(promise.block, missing) if promise and missing else None
                raise PlanError(plan.rank, writer, f"{chunk} ends wrong: {problem}", fault)


def _broken_promise(
    plan: Plan, contract: Contract, memory: Memory, chunk: Chunk, totals: dict[int, Value]
) -> tuple[str, int]:
    """Return the problem of a chunk (empty: none), and the contributions it lacks."""
    promise = contract.promise(plan, chunk.begin)
    if promise is None:
        return "", 0
    needed = (1 << plan.world_size) - 1 if isinstance(promise, Total) else 1 << promise.rank
    try:
        (value,) = memory.read(chunk)
    except ValueError:
        return "nothing was written to it", needed
    missing = needed & ~value.ranks
    if isinstance(promise, Contribution):
        expected = f"{promise.rank}.{promise.block}"
        return ("", 0) if value.tree == promise else (f"holds {value}, not {expected}", missing)
    if value.block != promise.block:
        return f"holds {value}, a reduction of another block", 0
    if missing:
        return f"holds {value}, without the contribution of rank {listed(missing)}", missing
    if contract.in_rank_order and not _is_in_rank_order(value, plan.world_size):
        return f"holds {value}, which is not one reduction in rank order", 0
    if totals.setdefault(promise.block, value) is not value:
        return f"holds {value}, another rank {totals[promise.block]}", 0
    return "", 0


def _is_in_rank_order(value: Value, n: int) -> bool:
    operands = value.tree if isinstance(value.tree, tuple) else (value,)
    expected = [Contribution(rank, value.block) for rank in range(n)]
    return [operand.tree for operand in operands] == expected
