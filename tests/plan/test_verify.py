"""Plans that are wrong in one way each: the error says where and what."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from node_shapes import one_node

from hccl_py.algorithms.table import plans_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan, PlanBuilder, PlanError, data, input, output
from hccl_py.plan.verify import verify

Write = Callable[[int, int, PlanBuilder], None]


def prove(
    collective: str, write: Write, n: int, *, chunks: int = 1, in_place: bool = False
) -> None:
    contract = COLLECTIVES[collective]
    root = 0 if contract.rooted else None
    plans = []
    for rank in range(n):
        header = Plan(collective, "t", rank, n, root)
        header = replace(header, shape=contract.shape(header, chunks))
        builder = PlanBuilder(header, (tuple(range(n)),))
        write(rank, n, builder)
        plans.append(builder.finish())
    verify(plans, contract, in_place=in_place)


def rejected(collective: str, write: Write, n: int, message: str, chunks: int = 1) -> PlanError:
    with pytest.raises(PlanError, match=message) as caught:
        prove(collective, write, n, chunks=chunks)
    return caught.value


def everyone_to_everyone(me: int, n: int, plan: PlanBuilder) -> None:
    others = [peer for peer in range(n) if peer != me]
    plan.send(others, data[:])
    plan.recv_reduce(others, data[:])


def test_nothing_done_lacks_the_others() -> None:
    error = rejected("all_reduce", lambda me, n, plan: None, 3, "without .* of rank 1, 2")
    assert (error.rank, error.op_index) == (0, None)


def test_missing_receive_leaves_a_message() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        everyone_to_everyone(me, n, plan)
        if me == 1:
            plan.send([0], data[0])

    error = rejected("all_reduce", write, 2, "send data\\[0\\] to 0.*rank 0 never receives")
    assert (error.rank, error.op_index) == (1, 2)


def test_contribution_counted_twice_is_named() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        everyone_to_everyone(me, n, plan)
        everyone_to_everyone(me, n, plan)

    error = rejected("all_reduce", write, 2, "counts the contribution of rank 0, 1 twice")
    assert (error.rank, error.op_index) == (0, 3)


def test_different_order_of_reduction_is_not_the_same_bits() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        others = [(me + 1) % 3, (me + 2) % 3]
        plan.send(others, data[0])
        for peer in others:
            plan.recv_reduce([peer], data[0])

    message = "ends wrong: holds .*, another rank \\(\\(0.0 \\+ 1.0\\) \\+ 2.0\\)"
    assert rejected("all_reduce", write, 3, message).rank == 1


def test_scratch_read_with_another_length_than_written_is_refused() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.copy(plan.scratch(0, like=data[0]), data[0])
        plan.send([1 - me], plan.scratch(0, like=data[1]))

    rejected("all_reduce", write, 2, "written with another length", chunks=2)


def test_blocks_of_one_message_are_not_taken_to_be_equal() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.copy(plan.scratch(0, like=output[0]), input[0])
        plan.send([1 - me], plan.scratch(0, like=output[0:2]))

    rejected("all_to_all", write, 2, "send scratch\\[0:2\\].* to have one length")


def test_wrong_source_is_refused() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        everyone_to_everyone(me, n, plan)

    error = rejected("broadcast", write, 2, "holds \\(0.0 \\+ 1.0\\), not 0.0")
    assert (error.rank, error.op_index) == (0, 1)


def test_receive_before_send_all_round_is_a_deadlock_of_all() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.recv((me - 1) % n, data[0])
        plan.send([(me + 1) % n], data[0])

    error = rejected("barrier", write, 3, "deadlock")
    for rank in range(3):
        peer = (rank - 1) % 3
        line = f"rank {rank}, op 0 `recv data[0] from {peer}` waits for a message of rank {peer}"
        assert line in str(error)


def test_overwriting_what_cannot_leave_is_a_deadlock() -> None:
    """A lane has room for one message, so the second waits for the peer, who waits likewise."""

    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.send([1 - me], data[0])
        plan.send([1 - me], data[1])
        plan.recv(1 - me, data[1])
        plan.recv(1 - me, data[0])

    rejected("barrier", write, 2, "until an earlier send of this chunk", chunks=2)


def test_in_place_caller_is_protected() -> None:
    """Output block 0 is input block `me` there, so what was written is read again."""

    def write(me: int, n: int, plan: PlanBuilder) -> None:
        for _ in range(2):
            plan.send([1 - me], input[1 - me])
            plan.copy(output[0], input[me])
            plan.recv_reduce([1 - me], output[0])

    prove("reduce_scatter", write, 2)
    with pytest.raises(PlanError, match="rank 0, op 5: .* counts .* of rank 1 twice"):
        prove("reduce_scatter", write, 2, in_place=True)


def test_barrier_that_hears_only_from_a_neighbour_is_refused() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.send([(me + 1) % n], data[0])
        plan.recv((me - 1) % n, data[0])

    rejected("barrier", write, 3, "before it received from every rank")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda plan: replace(plan, rank=0),
        lambda plan: replace(plan, world_size=2),
        lambda plan: replace(plan, root=0),
        lambda plan: replace(plan, collective="reduce"),
        lambda plan: replace(plan, algorithm="ring"),
        lambda plan: replace(plan, shape=plan.shape._replace(data_chunks=4)),
    ],
)
def test_plan_of_another_call_is_refused(wrong: Callable[[Plan], Plan]) -> None:
    plans = list(plans_for("all_reduce", "mesh", one_node(3)))
    plans[1] = wrong(plans[1])
    with pytest.raises(PlanError, match="rank 1: is Plan.*expected Plan"):
        verify(plans, COLLECTIVES["all_reduce"])


def in_halves(me: int, n: int, plan: PlanBuilder) -> None:
    """all_gather: the halves of a block go round a ring in opposite directions."""
    for half in (0, 1):
        plan.copy(output[2 * me + half], input[half])
    for step in range(n - 1):
        for half, way in ((0, 1), (1, -1)):
            plan.send([(me + way) % n], output[2 * ((me - way * step) % n) + half])
        for half, way in ((0, 1), (1, -1)):
            plan.recv((me - way) % n, output[2 * ((me - way * (step + 1)) % n) + half])


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_in_parts_are_proved(n: int, in_place: bool) -> None:
    prove("all_gather", in_halves, n, chunks=2, in_place=in_place)


def test_part_in_the_place_of_another_is_refused() -> None:
    def swapped(me: int, n: int, plan: PlanBuilder) -> None:
        for half in (0, 1):
            plan.copy(output[2 * me + half], input[1 - half])

    rejected("all_gather", swapped, 1, "copies between different lengths", chunks=2)

    def alike(me: int, n: int, plan: PlanBuilder) -> None:
        for half in (0, 1):
            plan.copy(output[half], input[2 * me + half])
            plan.send([1 - me], input[2 - 2 * me + (half if me else 0)])
        for half in (0, 1):
            plan.recv_reduce([1 - me], output[half])

    rejected("reduce_scatter", alike, 2, "gets a message of another length", chunks=2)


def test_missing_part_is_refused() -> None:
    def half(me: int, n: int, plan: PlanBuilder) -> None:
        plan.copy(output[2 * me], input[0])

    error = rejected(
        "all_gather", half, 1, r"output\[1\] ends wrong: nothing was written", chunks=2
    )
    assert error.fault is not None and error.fault.block == 1


def test_blocks_in_parts_share_no_message() -> None:
    def both(me: int, n: int, plan: PlanBuilder) -> None:
        for half in (0, 1):
            plan.copy(output[half], input[half])
        plan.copy(plan.scratch(0, like=output[0:2]), plan.scratch(2, like=output[0:2]))

    rejected("all_gather", both, 1, "to have one length", chunks=2)


def in_one_step(me: int, n: int, plan: PlanBuilder) -> None:
    everyone_to_everyone(me, n, plan)
    plan.end_step()


def test_ranks_take_as_many_steps() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        in_one_step(me, n, plan)
        if me == 2:
            plan.end_step()

    assert rejected("all_reduce", write, 3, "takes 2 steps, rank 0 1").rank == 2


def test_no_op_stands_behind_the_last_step() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        in_one_step(me, n, plan)
        plan.copy(plan.scratch(0, like=data[0]), data[0])

    error = rejected("all_reduce", write, 2, "behind the last step")
    assert (error.rank, error.op_index) == (0, 2)


def test_sends_come_first_in_their_step() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        if me == 1:
            plan.recv(0, plan.scratch(0, like=data[0]))
            plan.send([0], data[0])
        else:
            plan.send([1], data[0])
            plan.recv(1, plan.scratch(0, like=data[0]))
        plan.end_step()

    error = rejected("barrier", write, 2, "no send at the begin of its step")
    assert (error.rank, error.op_index) == (1, 1)


def test_pair_has_one_message_in_a_step() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        for _ in range(2):
            plan.send([1 - me], data[0])
        for _ in range(2):
            plan.recv(1 - me, plan.scratch(0, like=data[0]))
        plan.end_step()

    error = rejected("barrier", write, 2, "the second with rank 1")
    assert (error.rank, error.op_index) == (0, 1)


def test_message_is_received_in_the_step_in_which_it_is_sent() -> None:
    def write(me: int, n: int, plan: PlanBuilder) -> None:
        plan.send([1 - me], data[0])
        if me == 0:
            plan.end_step()
        plan.recv(1 - me, plan.scratch(0, like=data[0]))
        plan.end_step()
        if me == 1:
            plan.end_step()

    rejected(
        "barrier", write, 2, "step 0: rank 0 sends to 1 or 1 receives, not both|step 0: rank 1"
    )
