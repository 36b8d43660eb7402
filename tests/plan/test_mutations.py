"""Valid plans with one op dropped, doubled, changed or moved, which is always wrong.

That the engine runs what `verify` accepts is for `test_random_plans.py` to show.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from node_shapes import one_node

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS, contract_for, plans_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Chunk, Nodes, Op, OpKind, Plan, PlanError
from hccl_py.plan.verify import verify

RECEIVES = (OpKind.RECV, OpKind.RECV_REDUCE)
OTHER_KIND = {OpKind.RECV: OpKind.RECV_REDUCE, OpKind.RECV_REDUCE: OpKind.RECV}
NODES = {"2": one_node(2), "4": one_node(4), "2+3": ((0, 1), (2, 3, 4))}
CASES = [
    pytest.param(collective, name, nodes, id=f"{collective}-{name}-{ranks}")
    for collective, name in ALGORITHMS
    for ranks, nodes in NODES.items()
]


def other_chunks(plan: Plan, chunk: Chunk) -> list[Chunk]:
    """List the chunks of equal span elsewhere in the buffer, and the other scratch slot.

    Blocks that share a message are equally long, so a slot like another of them is no change.
    """
    span = chunk.end - chunk.begin
    moved = [
        chunk._replace(begin=begin, end=begin + span)
        for begin in range(plan.shape[chunk.buffer] - span + 1)
        if begin != chunk.begin and (chunk.scratch is None or plan.shape.data_chunks)
    ]
    return [*moved, chunk._replace(scratch=0 if chunk.scratch is None else 1 - chunk.scratch)]


def changed(plan: Plan, op: Op, has_values: bool) -> Iterator[tuple[Op, ...]]:
    """Yield what may stand in the place of an op, all of it wrong."""
    yield ()
    if op.kind is not OpKind.COPY:  # to copy twice in a row is harmless
        yield op, op
    for peer in op.peers:
        if len(op.peers) > 1:
            yield (op._replace(peers=tuple(one for one in op.peers if one != peer)),)
        for other in set(range(plan.world_size)) - {peer, plan.rank}:
            yield (op._replace(peers=tuple(other if one == peer else one for one in op.peers)),)
    if not has_values:
        return
    if op.kind in OTHER_KIND and len(op.peers) == 1:
        yield (op._replace(kind=OTHER_KIND[op.kind]),)
    for chunk in other_chunks(plan, op.dst) if op.dst else ():
        yield (op._replace(dst=chunk),)
    for chunk in other_chunks(plan, op.src) if op.src else ():
        yield (op._replace(src=chunk),)


@pytest.mark.nightly("plans")
@pytest.mark.parametrize(("collective", "name", "nodes"), CASES)
def test_plan_with_one_op_changed_is_rejected(collective: str, name: str, nodes: Nodes) -> None:
    contract = contract_for(collective, name)
    root = count_ranks(nodes) - 1 if contract.rooted else None
    # Without its steps, which every change breaks too.
    plans = [replace(plan, steps=()) for plan in plans_for(collective, name, nodes, root)]
    verify(plans, contract)
    for rank, plan in enumerate(plans):
        for index, op in enumerate(plan.ops):
            for ops in changed(plan, op, not contract.meets):
                mutated = replace(plan, ops=(*plan.ops[:index], *ops, *plan.ops[index + 1 :]))
                with pytest.raises(PlanError):
                    verify([*plans[:rank], mutated, *plans[rank + 1 :]], contract)


@pytest.mark.parametrize(("collective", "name", "nodes"), CASES)
def test_step_that_ends_elsewhere_is_rejected(collective: str, name: str, nodes: Nodes) -> None:
    contract = contract_for(collective, name)
    plans = list(plans_for(collective, name, nodes, 0 if contract.rooted else None))
    for rank, plan in enumerate(plans):
        for step, end in enumerate(plan.steps):
            for moved in {end - 1, end + 1} & set(range(len(plan.ops) + 1)):
                if plan.ops[min(end, moved)].kind is OpKind.COPY:
                    continue  # which may stand in either step
                steps = (*plan.steps[:step], moved, *plan.steps[step + 1 :])
                with pytest.raises(PlanError):
                    mutated = replace(plan, steps=steps)
                    verify([*plans[:rank], mutated, *plans[rank + 1 :]], contract)


def test_ring_that_receives_before_it_sends_is_a_deadlock() -> None:
    plans = plans_for("all_reduce", "ring", NODES["4"], None)
    reordered = [
        replace(plan, ops=tuple(sorted(plan.ops, key=lambda op: op.kind not in RECEIVES)))
        for plan in plans
    ]
    with pytest.raises(PlanError, match="deadlock.*\n.*rank 0, op 0 .* waits for a message"):
        verify(reordered, COLLECTIVES["all_reduce"])
