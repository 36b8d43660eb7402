from collections.abc import Callable

import pytest

from hccl_py.plan.language import (
    Chunk,
    Op,
    OpKind,
    Plan,
    PlanBuilder,
    PlanError,
    Shape,
    data,
    input,
    output,
)
from hccl_py.plan.verify import check_op

SHAPE = Shape(data_chunks=4, input_blocks=2, output_blocks=2)


def builder(root: int | None = None) -> PlanBuilder:
    return PlanBuilder(Plan("any", "made_up", 1, 3, root, SHAPE), nodes=((0, 1), (2,)))


def test_ops_stand_in_the_order_they_were_written() -> None:
    plan = builder()
    temporary = plan.scratch(1, like=data[:])
    plan.copy(temporary, data[:])
    plan.recv_reduce([2, 0], temporary)
    plan.send([2, 0], temporary)
    plan.recv(0, output[1])
    whole = Chunk(data[0].buffer, 0, 4)
    assert plan.finish().ops == (
        Op(OpKind.COPY, dst=whole._replace(scratch=1), src=whole),
        Op(OpKind.RECV_REDUCE, (0, 2), dst=whole._replace(scratch=1)),
        Op(OpKind.SEND, (2, 0), src=whole._replace(scratch=1)),
        Op(OpKind.RECV, (0,), dst=output[1]),
    )


def test_wrong_op_is_rejected() -> None:
    cases: list[tuple[Callable[[PlanBuilder], None], str]] = [
        (lambda plan: plan.send([3], data[0]), "peer of \\(3,\\) is outside 0..2"),
        (lambda plan: plan.send([-1], data[0]), "peer of \\(-1,\\) is outside 0..2"),
        (lambda plan: plan.recv(1, data[0]), "its own peer"),
        (lambda plan: plan.send([0, 0], data[0]), "named twice"),
        (lambda plan: plan.send([0], data[4]), "outside data\\[0:4\\]"),
        (lambda plan: plan.send([0], data[2:2]), "is empty"),
        (lambda plan: plan.send([0], data[3:2]), "is empty"),
        (lambda plan: plan.recv(0, output[2]), "outside output\\[0:2\\]"),
        (lambda plan: plan.recv(0, output[:]), "one block or part"),
        (lambda plan: plan.recv(0, input[0]), "input is read only"),
        (lambda plan: plan.copy(input[0], output[0]), "input is read only"),
        (lambda plan: plan.send([0], plan.scratch(-1, like=data[0])), "slot -1 is negative"),
    ]
    for write, message in cases:
        builder_of_one = builder()
        write(builder_of_one)
        plan = builder_of_one.finish()
        with pytest.raises(PlanError, match=message) as caught:
            check_op(plan, 0, plan.ops[0])
        assert (caught.value.rank, caught.value.op_index) == (1, 0)


def test_rendering_has_one_op_per_line() -> None:
    plan = builder(root=0)
    plan.copy(plan.scratch(0, like=data[1]), data[1])
    plan.send([2, 0], data[:])
    plan.recv(0, output[1])
    plan.recv_reduce([2, 0], data[0:2])
    assert str(plan.finish()).splitlines() == [
        "any/made_up, rank 1 of 3, root 0, 4 chunks",
        "0  copy data[1] to scratch[0] like data[1]",
        "1  send data[0:4] to 2 0",
        "2  recv output[1] from 0",
        "3  recv_reduce data[0:2] from 0 2",
    ]
