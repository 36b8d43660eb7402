"""Every algorithm: mixed nodes with every root, and what is true of all plans.

`tests/lab/test_bound.py` proves all up to a number of ranks.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from node_shapes import nodes_by, one_node
from tiers import by_night

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import (
    ALGORITHMS,
    contract_for,
    plan_for,
    plans_for,
    verify_algorithm,
)
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import OpKind, PlanError
from hccl_py.plan.lower import lower
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

UNEVEN = {
    "3+5": ((0, 1, 2), (3, 4, 5, 6, 7)),
    "5+3": ((0, 1, 2, 3, 4), (5, 6, 7)),
    "1+4": ((0,), (1, 2, 3, 4)),
    "2+3+4": ((0, 1), (2, 3, 4), (5, 6, 7, 8)),
    "3+1+1+2": ((4, 0, 5), (6,), (1,), (3, 2)),
    "4+1": nodes_by("aaaab"),
    "2+3, mixed": nodes_by("abbab"),
    "2+2+2+2": nodes_by("aabbccdd"),
    "8+8": nodes_by("a" * 8 + "b" * 8),
    "round robin": nodes_by([rank % 3 for rank in range(8)]),
}
DAILY = ("3+5", "1+4", "3+1+1+2", "2+3, mixed", "round robin")
each_algorithm = pytest.mark.parametrize(("collective", "name"), ALGORITHMS)


@cache
def roots(collective: str, n: int, every: int = 1) -> tuple[int | None, ...]:
    return tuple(range(0, n, every)) if COLLECTIVES[collective].rooted else (None,)


@each_algorithm
@pytest.mark.parametrize(
    "shape", [*DAILY, *by_night("plans", *(shape for shape in UNEVEN if shape not in DAILY))]
)
def test_algorithm_holds_for_uneven_nodes_and_every_root(
    collective: str, name: str, shape: str
) -> None:
    for root in roots(collective, count_ranks(UNEVEN[shape])):
        verify_algorithm(collective, name, UNEVEN[shape], root)


@each_algorithm
def test_plans_are_the_same_each_time(collective: str, name: str) -> None:
    root = 3 if COLLECTIVES[collective].rooted else None
    first, second = (plans_for(collective, name, UNEVEN["3+5"], root) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert list(map(lower, first)) == list(map(lower, second))


@each_algorithm
def test_engine_needs_little_scratch(collective: str, name: str) -> None:
    """Scratch is memory of every rank for every plan in flight: three slots are enough for all."""
    span = ALGORITHMS[collective, name].max_span
    for nodes in (*UNEVEN.values(), one_node(17)):
        for root in roots(collective, count_ranks(nodes), every=3):
            for plan in plans_for(collective, name, nodes, root):
                blocks_in_slot = 1 if plan.shape.data_chunks else span(nodes)
                assert lower(plan).scratch_slots <= 3 * blocks_in_slot


@pytest.mark.parametrize("shape", ["3+5", "2+3+4", "3+1+1+2", "8+8"])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_gather", "reduce_scatter"])
def test_hierarchical_crosses_the_wire_once_per_block_and_node(collective: str, shape: str) -> None:
    nodes = UNEVEN[shape]
    for root in roots(collective, count_ranks(nodes)):
        crossings = 0
        for plan in plans_for(collective, "hierarchical", nodes, root):
            (home,) = (node for node in nodes if plan.rank in node)
            crossings += sum(
                peer not in home for op in plan.ops if op.kind is OpKind.SEND for peer in op.peers
            )
        owners = min(len(node) for node in nodes)
        blocks = owners if root is not None else count_ranks(nodes)
        assert crossings == blocks * (len(nodes) - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", "direct", 0), "none of all_reduce; there are: one_shot, mesh, ring"),
        (("allreduce", "ring", 0), "no such collective"),
        (("all_reduce", "ring", 0, 0), "root of all_reduce: expected None, got 0"),
        (("broadcast", "tree", 0), "root of broadcast: expected one of 0..7, got None"),
        (("broadcast", "tree", 0, 8), "root of broadcast: expected one of 0..7, got 8"),
    ],
)
def test_wrong_argument_is_named(arguments: tuple[Any, ...], message: str) -> None:
    collective, name, rank = arguments[:3]
    with pytest.raises(InvalidArgumentError, match=message):
        plan_for(collective, name, rank, UNEVEN["3+5"], *arguments[3:])


@each_algorithm
def test_algorithm_reduces_in_rank_order_exactly_where_it_says_so(
    collective: str, name: str
) -> None:
    """`contract_for` has those proved that say so; here are the others."""
    contract = replace(contract_for(collective, name), in_rank_order=True)
    reduces = contract.one_length and not contract.meets and collective != "broadcast"
    declared = ALGORITHMS[collective, name].in_rank_order
    assert reduces or not declared
    if reduces and not declared:
        root = 2 if contract.rooted else None
        with pytest.raises(PlanError, match="is not one reduction in rank order"):
            verify(plans_for(collective, name, UNEVEN["2+2+2+2"], root), contract)
