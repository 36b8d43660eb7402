"""Every algorithm of the table, proved for all ranks and nodes of the bound that the docs state."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from tiers import by_night

from hccl_py.algorithms.table import ALGORITHMS, contract_for, plans_for, verify_as_declared
from hccl_py.lab import bound
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanError


@pytest.mark.parametrize("most_ranks", [6, *by_night("plans", bound.MOST_RANKS)])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_algorithm_holds_up_to_the_bound(collective: str, name: str, most_ranks: int) -> None:
    entry, contract = ALGORITHMS[collective, name], contract_for(collective, name)
    rooted, proved = COLLECTIVES[collective].rooted, bound.Proved()
    for n, every in bound.worlds(most_ranks):
        for nodes, root in product(every, bound.roots(n, rooted)):
            plans = plans_for(collective, name, nodes, root)
            if proved.is_new(plans, entry.max_span(nodes)):
                verify_as_declared(entry, plans, contract, nodes)


def test_bound_has_every_split_once() -> None:
    every = [nodes for _, worlds in bound.worlds() for nodes in worlds]
    assert len(every) == len(set(every))
    splits = Counter(len(nodes) for nodes in every if max(map(len, nodes)) <= 4)
    assert [splits[number] for number in range(1, 5)] == [4, 16, 64, 256]
    assert {sum(map(len, nodes)) for nodes in every} == set(range(1, 65))
    for nodes in every:
        assert sorted(rank for node in nodes for rank in node) == list(range(sum(map(len, nodes))))


def test_op_wider_than_the_entry_says_is_refused() -> None:
    """Ranks cut tiles by what the entry says; a wider op would not fit a message."""
    nodes = (tuple(range(8)),)
    entry = ALGORITHMS["all_reduce", "halving_doubling"]
    contract = contract_for("all_reduce", "halving_doubling")
    plans = plans_for("all_reduce", "halving_doubling", nodes)
    verify_as_declared(entry, plans, contract, nodes)
    with pytest.raises(PlanError, match="an op has 4 chunks, and its entry says 3"):
        verify_as_declared(entry._replace(max_span=lambda _: 3), plans, contract, nodes)
