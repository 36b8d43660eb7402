"""What is too large for the engine, or for a proof, is refused before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from node_shapes import one_node

from hccl_py.algorithms.custom import WrongAlgorithmError, algorithm
from hccl_py.plan.language import MOST_OPS, PlanBuilder, PlanError, data, input
from hccl_py.plan.limits import MOST_CHUNKS, MOST_SCRATCH, most_span
from hccl_py.plan.rendezvous import ANNOUNCED, rendezvous
from hccl_py.transport.errors import InvalidArgumentError

Write = Callable[[int, int, PlanBuilder], None]
SPAN = most_span(2)


def swap(me: int, n: int, plan: PlanBuilder, slot: int = 0) -> None:
    plan.copy(plan.scratch(slot, like=data[:]), data[:])
    plan.send([1 - me], plan.scratch(slot, like=data[:]))
    plan.recv_reduce([1 - me], data[:])


@pytest.mark.nightly("plans")
def test_largest_plans_are_accepted() -> None:
    algorithm("all_reduce", chunks=SPAN)(swap).verify(one_node(2))
    last = MOST_SCRATCH - 1
    algorithm("all_reduce")(lambda me, n, plan: swap(me, n, plan, last)).verify(one_node(2))


def blocks(me: int, n: int, plan: PlanBuilder) -> None:
    plan.copy(plan.scratch(MOST_SCRATCH, like=input[0]), input[0])


@pytest.mark.parametrize(
    ("collective", "chunks", "write", "problem"),
    [
        ("all_reduce", SPAN + 1, swap, f"at most {SPAN} chunks in an op among 2 ranks, got"),
        (
            "all_reduce",
            1,
            lambda me, n, plan: swap(me, n, plan, 10**9),
            "at most 1024 slots of scratch, got 1000000001",
        ),
        ("all_to_all", 1, blocks, "at most 1024 slots of scratch, got 1025"),
    ],
)
def test_plan_that_the_engine_cannot_run_is_refused(
    collective: str, chunks: int, write: Write, problem: str
) -> None:
    with pytest.raises(WrongAlgorithmError, match=problem):
        algorithm(collective, chunks=chunks)(write).verify(one_node(2))


@pytest.mark.parametrize("chunks", [0, -1, 2.0, "2", None, MOST_CHUNKS + 1])
def test_chunks_that_are_no_such_number_are_refused(chunks: object) -> None:
    for given in (chunks, lambda n, nodes: chunks):
        with pytest.raises(InvalidArgumentError, match="chunks: expected a whole number from 1 to"):
            algorithm("all_reduce", chunks=given)(swap).verify(one_node(2))  # type: ignore[arg-type]


def repeats_ops(me: int, n: int, plan: PlanBuilder) -> None:
    while True:
        plan.send([1 - me], data[0])


def repeats_steps(me: int, n: int, plan: PlanBuilder) -> None:
    while True:
        plan.end_step()


@pytest.mark.parametrize(("write", "what"), [(repeats_ops, "ops"), (repeats_steps, "steps")])
def test_function_without_end_is_ended(
    write: Write, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_OPS >= 1 << 19
    monkeypatch.setattr("hccl_py.plan.language.MOST_OPS", 1000)
    with pytest.raises(InvalidArgumentError, match=f"expected at most 1000 {what} of a plan"):
        algorithm("all_reduce")(write).verify(one_node(2))


def test_peers_without_end_are_refused() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.send(itertools.count(), data[0])

    with pytest.raises(WrongAlgorithmError, match="a rank cannot be its own peer"):
        algorithm("all_reduce")(write).verify(one_node(2))


@pytest.mark.parametrize(
    "write",
    [
        lambda me, n, plan: plan.send([0.5], data[0]),
        lambda me, n, plan: plan.recv(1.0, data[0]),
        lambda me, n, plan: plan.send([1 - me], data[0.0]),
        lambda me, n, plan: plan.send([1 - me], data[0:1.0]),
        lambda me, n, plan: plan.copy(plan.scratch(0.5, like=data[0]), data[0]),
    ],
)
def test_number_that_is_not_whole_is_refused(write: Write) -> None:
    with pytest.raises(InvalidArgumentError, match="TypeError"):
        algorithm("all_reduce")(write).verify(one_node(2))


def test_reply_that_no_header_can_name_is_not_asked_for() -> None:
    """A send whose answer is the peer's 70,000th message after it."""

    def write(me: int, _n: int, plan: PlanBuilder) -> None:
        if me == 0:
            plan.send([1], data[0])
            for _ in range(70_000 - 1):
                plan.recv(1, plan.scratch(0, like=data[0]))
            plan.recv(1, data[0])

    assert rendezvous(algorithm("all_reduce")(write).plan(0, one_node(2), None).ops)[0] == ANNOUNCED


def test_long_chain_that_is_wrong_is_spelt_in_short() -> None:
    def chain(me: int, n: int, plan: PlanBuilder) -> None:
        if me > 0:
            plan.recv_reduce([me - 1], data[:])
        if me < n - 1:
            plan.send([me + 1], data[:])
        if me == n - 1:
            plan.send([0], data[:])
        if me == 0:
            plan.recv_reduce([n - 1], data[:])

    with pytest.raises(WrongAlgorithmError, match="counts the contribution of rank 0 twice") as one:
        algorithm("all_reduce")(chain).verify(one_node(1200))
    assert len(str(one.value)) < 1000


def test_ranks_that_stand_still_are_listed_up_to_a_number() -> None:
    def ring(me: int, n: int, plan: PlanBuilder) -> None:
        plan.recv((me - 1) % n, data[:])
        plan.send([(me + 1) % n], data[:])

    with pytest.raises(WrongAlgorithmError, match="and 36 more") as one:
        algorithm("all_reduce")(ring).verify(one_node(100))
    assert isinstance(one.value.__cause__, PlanError)
