import pytest

from hccl_py.plan import (
    Agreement,
    LoweredPlan,
    Plan,
    PlanBuilder,
    Shape,
    data,
    input,
    lower,
    output,
    partition,
    range_of,
)

NOTHING = Agreement((), frozenset())


def test_every_kind_and_buffer_becomes_its_row() -> None:
    shape = Shape(data_chunks=4, input_blocks=2, output_blocks=3)
    plan = PlanBuilder(Plan("any", "made_up", 1, 4, None, shape), nodes=((0, 1, 2, 3),))
    plan.send([3, 0], data[1:4])
    plan.recv(2, output[2])
    plan.recv_reduce([3, 2, 0], plan.scratch(2, like=input[1]))
    plan.copy(output[0], plan.scratch(0, like=input[0]))
    agreement = Agreement(((1, 2), (2, 0)), frozenset({1}))
    assert lower(plan.finish(), agreement) == LoweredPlan(
        ops=(
            (0, 0, 2, 0, 0, 0, -1, 0, 1, 4, -1, 0),
            (1, 2, 1, 2, 2, 3, -1, 0, 0, 0, -1, 1),
            (2, 3, 3, 1, 1, 2, 2, 0, 0, 0, -1, 0),
            (3, 6, 0, 2, 0, 1, -1, 1, 0, 1, 0, 0),
        ),
        peers=(3, 0, 2, 0, 2, 3),
        first_messages=((1, 2), (2, 0)),
        data_chunks=4,
        input_blocks=2,
        output_blocks=3,
        scratch_slots=3,
        max_chunk_span=3,
    )


def test_plan_without_data_or_ops_spans_nothing() -> None:
    lowered = lower(Plan("any", "made_up", 0, 1, None, Shape()), NOTHING)
    assert (lowered.ops, lowered.scratch_slots, lowered.max_chunk_span) == ((), 0, 0)


def test_lowered_plans_hash() -> None:
    plan = Plan("any", "made_up", 0, 1, None, Shape(data_chunks=1))
    assert len({lower(plan, NOTHING), lower(plan, NOTHING)}) == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 17])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 100, 1 << 40])
def test_partition_is_even_ordered_and_complete(count: int, parts: int) -> None:
    begins = partition(count, parts)
    lengths = [end - begin for begin, end in zip(begins, begins[1:], strict=False)]
    assert (begins[0], begins[-1], len(lengths)) == (0, count, parts)
    assert sum(lengths) == count
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_range_of_agrees_with_partition() -> None:
    for count in (0, 5, 23):
        begins = partition(count, 7)
        for begin in range(8):
            for end in range(begin, 8):
                assert range_of(count, 7, begin, end) == (begins[begin], begins[end])


def test_first_parts_are_the_longer_ones() -> None:
    assert partition(11, 4) == (0, 3, 6, 9, 11)
