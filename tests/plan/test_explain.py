"""What a wrong plan looks like: a forgotten send, a forgotten receive, any op that is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from node_shapes import one_node

from hccl_py.algorithms.custom import WrongAlgorithmError, algorithm
from hccl_py.algorithms.table import ALGORITHMS, contract_for, plans_for
from hccl_py.plan.explain import explain
from hccl_py.plan.language import PlanBuilder, PlanError, data, input, output
from hccl_py.plan.verify import verify

Write = Callable[[int, int, PlanBuilder], None]


def others(me: int, n: int) -> list[int]:
    return [rank for rank in range(n) if rank != me]


def forgotten_send(me: int, n: int, plan: PlanBuilder) -> None:
    plan.send(others(me, n)[:-1], data[:])
    plan.recv_reduce(others(me, n), data[:])


def forgotten_receive(me: int, n: int, plan: PlanBuilder) -> None:
    plan.copy(output[me], input[0])
    plan.send(others(me, n), input[0])
    for rank in others(me, n):
        if (me, rank) != (1, 3):
            plan.recv(rank, output[rank])


def picture_of(collective: str, write: Write) -> str:
    with pytest.raises(WrongAlgorithmError) as caught:
        algorithm(collective)(write).verify(one_node(4))
    return str(caught.value).partition("\n\n")[2]


def test_deadlock_shows_what_each_receive_that_waits_has_got() -> None:
    assert picture_of("all_reduce", forgotten_send) == (
        "a column is a rank whose contribution is in it: # once, ? missing\n"
        "              0123\n"
        "rank 2 op 1   ###?  recv_reduce data[0] from 0 1 3  <- waits\n"
        "rank 3 op 1   ???#  recv_reduce data[0] from 0 1 2  <- waits"
    )


def test_message_that_nobody_takes_shows_who_lacks_it() -> None:
    assert picture_of("all_gather", forgotten_receive) == (
        "a column is a rank whose contribution is in it: # once, ? missing\n"
        "              0123\n"
        "rank 3 op 1   ...#  send input[0] to 0 1 2\n"
        "rank 1        ...?  output[3] at its end  <- here"
    )


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_op_that_is_missing_is_explained(collective: str, name: str) -> None:
    contract = contract_for(collective, name)
    root = 2 if contract.rooted else None
    plans = [replace(plan, steps=()) for plan in plans_for(collective, name, one_node(4), root)]
    for rank, plan in enumerate(plans):
        for index in range(len(plan.ops)):
            wrong = replace(plan, ops=(*plan.ops[:index], *plan.ops[index + 1 :]))
            mutated = [*plans[:rank], wrong, *plans[rank + 1 :]]
            with pytest.raises(PlanError) as caught:
                verify(mutated, contract)
            text = explain(mutated, contract, caught.value)
            assert text.startswith(str(caught.value))
            if "deadlock" in text and not contract.meets:
                assert "<- waits" in text
