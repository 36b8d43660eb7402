import pytest

from hccl_py.plan import Contribution
from hccl_py.plan.values import Values


def test_equal_trees_are_one_value_and_other_orders_are_others() -> None:
    values = Values()
    a, b, c = (values.leaf(Contribution(rank, 0)) for rank in range(3))
    assert values.reduced([a, b]) == values.reduced([a, b])
    assert values.reduced([a, b]) != values.reduced([b, a])
    left = values.reduced([values.reduced([a, b]), c])
    right = values.reduced([a, values.reduced([b, c])])
    assert len({left, right, values.reduced([a, b, c])}) == 3
    assert values.describe(left) == "((0.0 + 1.0) + 2.0)"


def test_rank_counted_twice_is_refused() -> None:
    values = Values()
    a, b = (values.leaf(Contribution(rank, 0)) for rank in range(2))
    with pytest.raises(ValueError, match="rank 1 twice"):
        values.reduced([values.reduced([a, b]), b])


def test_different_blocks_do_not_reduce() -> None:
    values = Values()
    with pytest.raises(ValueError, match="block 0 together with block 1"):
        values.reduced([values.leaf(Contribution(0, 0)), values.leaf(Contribution(1, 1))])
