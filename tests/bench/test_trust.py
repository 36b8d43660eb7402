"""Doubts about a result, from its own times."""

import pytest

from hccl_py.bench.collective.analysis.trust import slow_call_doubts


@pytest.mark.parametrize(
    ("time_us", "p50_us", "expected"),
    [(10.0, 9.0, ""), (100.0, 10.0, "10.0 x p50"), (10.0, 50.0, "5.0 x time")],
)
def test_mean_and_median_that_differ_much_are_explained(
    time_us: float, p50_us: float, expected: str
) -> None:
    found = slow_call_doubts(time_us, p50_us)
    assert bool(found) == bool(expected)
    assert expected in "".join(found)
