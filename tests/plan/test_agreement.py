"""Who is known to make the same call, worked out by hand for plans of two and three ranks."""

from __future__ import annotations

from collections.abc import Callable

from hccl_py.plan import Agreement, PlanBuilder, Shape, agreements, data, input, output
from hccl_py.plan.ops import Plan

Write = Callable[[int, PlanBuilder], None]


def _agreements(n: int, shape: Shape, write: Write) -> tuple[Agreement, ...]:
    plans = []
    for rank in range(n):
        builder = PlanBuilder(Plan("any", "made_up", rank, n, None, shape), (tuple(range(n)),))
        write(rank, builder)
        plans.append(builder.finish())
    return agreements(plans)


def test_all_that_is_sent_at_once_comes_before_the_first_write() -> None:
    def exchange(me: int, plan: PlanBuilder) -> None:
        others = [rank for rank in range(3) if rank != me]
        for peer in others:
            plan.send([peer], input[peer])
        plan.copy(output[me], input[me])
        for peer in others:
            plan.recv(peer, output[peer])

    first, second, _ = _agreements(3, Shape(input_blocks=3, output_blocks=3), exchange)
    assert first == Agreement(((3, 1), (4, 2)), frozenset())
    assert second == Agreement(((3, 0), (4, 2)), frozenset())


def test_what_is_sent_after_a_write_may_wait_for_us() -> None:
    """Everyone writes before it sends: to wait for anybody would be a deadlock."""

    def exchange(me: int, plan: PlanBuilder) -> None:
        plan.copy(output[me], input[0])
        plan.send([1 - me], output[me])
        plan.recv(1 - me, output[1 - me])

    for agreement in _agreements(2, Shape(input_blocks=1, output_blocks=2), exchange):
        assert agreement == Agreement((), frozenset({0}))


def test_scratch_is_nobody_elses() -> None:
    def exchange(me: int, plan: PlanBuilder) -> None:
        mine = plan.scratch(0, like=data[me])
        plan.copy(mine, data[me])
        plan.send([1 - me], mine)
        plan.recv(1 - me, data[1 - me])

    for me, agreement in enumerate(_agreements(2, Shape(data_chunks=2), exchange)):
        assert agreement == Agreement(((2, 1 - me),), frozenset())


def _chain(me: int, plan: PlanBuilder) -> None:
    """Rank 0 adds up what 1 has of 2, and the sum goes back the same way."""
    if me < 2:
        plan.recv_reduce([me + 1], data[0])
    if me > 0:
        plan.send([me - 1], data[0])
        plan.recv(me - 1, data[0])
    if me < 2:
        plan.send([me + 1], data[0])


def test_who_is_heard_of_through_others_counts() -> None:
    root, middle, end = _agreements(3, Shape(data_chunks=1), _chain)
    assert root == Agreement((), frozenset())  # 1 sends when it has heard from 2
    # The partial sum of 1 and 2 is there before rank 0 was heard from.
    assert middle == Agreement(((0, 2),), frozenset({0}))
    assert end == Agreement((), frozenset())


def test_a_message_of_another_chunk_is_no_witness() -> None:
    """Chunk 0 may be empty, and its message missing, where chunk 1 is not."""

    def two_chunks(me: int, plan: PlanBuilder) -> None:
        if me == 0:
            plan.recv(1, data[0])
            plan.recv(2, data[1])
        else:
            plan.send([0], data[me - 1])

    first, _, _ = _agreements(3, Shape(data_chunks=2), two_chunks)
    assert first == Agreement(((0, 1), (1, 2)), frozenset({0, 1}))


def test_a_wider_message_is_a_witness() -> None:
    def halves(me: int, plan: PlanBuilder) -> None:
        if me == 0:
            plan.send([1], data[:])
        elif me == 1:
            plan.recv(0, data[:])
            plan.send([2], data[1])
        else:
            plan.recv(1, data[1])

    assert [one.unsure for one in _agreements(3, Shape(data_chunks=2), halves)] == [frozenset()] * 3
