"""Bine trees: the tree of their paper, and messages between nearer ranks than binomial ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from node_shapes import one_node

from hccl_py.algorithms.table import plans_for
from hccl_py.plan.language import OpKind, Plan


def messages(plans: tuple[Plan, ...]) -> list[tuple[int, int, int]]:
    """List sender, receiver and number of chunks of each message."""
    return [
        (plan.rank, peer, op.src.end - op.src.begin)
        for plan in plans
        for op in plan.ops
        if op.kind is OpKind.SEND and op.src is not None
        for peer in op.peers
    ]


def distance(one: int, other: int, n: int) -> int:
    return min((one - other) % n, (other - one) % n)


def test_tree_is_that_of_the_paper() -> None:
    """Rank 0 of 8 sends to 3, 7 and 1; 3 to 4 and 2; 7 to 6; 4 to 5."""
    plans = plans_for("broadcast", "bine", one_node(8), 0)
    pairs = [(source, target) for source, target, _ in messages(plans)]
    assert sorted(pairs) == [(0, 1), (0, 3), (0, 7), (3, 2), (3, 4), (4, 5), (7, 6)]


@pytest.mark.parametrize("n", [8, 16, 64, 256])
@pytest.mark.parametrize("root", [0, 5])
def test_tree_spans_a_third_of_the_ranks_where_a_binomial_one_spans_half(n: int, root: int) -> None:
    longest = {
        name: max(
            distance(a, b, n) for a, b, _ in messages(plans_for("broadcast", name, nodes, root))
        )
        for nodes in [one_node(n)]
        for name in ("bine", "tree")
    }
    assert longest["tree"] == n // 2 and longest["bine"] <= n / 3 + 1


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("per_group", [4, 7, 16])
def test_less_leaves_groups_of_ranks_in_a_row_wherever_they_begin(n: int, per_group: int) -> None:
    """The mean over the begins of the groups, beside a binomial butterfly, the nearest first."""

    def leaving(every: Sequence[tuple[int, int, int]]) -> int:
        return sum(
            size
            for begin in range(per_group)
            for a, b, size in every
            if (a + begin) // per_group != (b + begin) // per_group
        )

    steps = range(n.bit_length() - 1)
    binomial = [(rank, rank ^ 1 << k, n >> (k + 1)) for rank in range(n) for k in steps] * 2
    bine = messages(plans_for("all_reduce", "bine", one_node(n)))
    assert sum(size for *_, size in bine) == sum(size for *_, size in binomial)
    assert leaving(bine) < 0.85 * leaving(binomial)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_neighbours_share_a_seat_where_ranks_are_no_power_of_two(n: int) -> None:
    seats = 1 << (n.bit_length() - 1)
    plans = plans_for("all_reduce", "bine", one_node(n))
    aside = [
        plan for plan in plans if {peer for op in plan.ops for peer in op.peers} == {plan.rank - 1}
    ]
    assert [plan.rank for plan in aside] == list(range(1, 2 * (n - seats), 2))
    assert plans[0].shape.data_chunks == seats
