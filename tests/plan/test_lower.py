from hccl_py.plan.language import Plan, PlanBuilder, Shape, input, output
from hccl_py.plan.lower import lower


def test_a_copy_to_where_the_next_op_reduces_becomes_its_source() -> None:
    shape = Shape(input_blocks=2, output_blocks=1)
    plan = PlanBuilder(Plan("any", "made_up", 1, 2, None, shape), nodes=((0, 1),))
    plan.send([0], input[0])
    plan.copy(output[0], plan.scratch(1, like=input[1]))
    plan.recv_reduce([0], output[0])
    plan.end_step()
    plan.copy(plan.scratch(0, like=input[1]), input[1])
    plan.recv_reduce([0], output[0])  # elsewhere
    plan.copy(output[0], input[1])
    plan.end_step()
    plan.recv_reduce([0], output[0])  # in another step
    plan.end_step()
    lowered = lower(plan.finish())
    assert [row[0] for row in lowered.ops] == [0, 2, 3, 2, 3, 2]
    assert lowered.ops[1] == (2, 1, 1, 2, 0, 1, -1, 1, 1, 2, 1, 0)
    assert [row[7:11] for row in lowered.ops if row[0] == 2][1:] == [(0, 0, 0, -1)] * 2
    assert lowered.steps == (2, 5, 6)
    assert lowered.scratch_slots == 2
