import pytest

from hccl_py.bench.collective.measure import Result, Row, Spread, count_wrong
from hccl_py.bench.collective.messages import Checked
from hccl_py.bench.collective.options import parse
from hccl_py.bench.collective.report import Table


def _row(*rounds_us: list[float]) -> Row:
    names = ("hccl", "gloo")
    results = [Result(name, 0, 1, list(us)) for name, us in zip(names, rounds_us, strict=False)]
    return Row(size=64_000_000, count=16_000_000, busbw_factor=1.75, results=tuple(results))


def test_spread_of_eleven_values_takes_the_second_sixth_and_tenth() -> None:
    values = [float(value) for value in (5, 3, 10, 8, 0, 1, 4, 7, 2, 6, 9)]
    assert Spread.of(values) == Spread(median=5.0, p10=1.0, p90=9.0)


def test_ratio_is_of_medians_and_its_spread_of_neighbouring_rounds() -> None:
    row = _row([100.0, 100.0, 200.0], [1000.0, 3000.0, 2000.0])
    ratio = row.ratio(row.results[1])
    assert ratio.median == pytest.approx(20.0)
    assert (ratio.p10, ratio.p90) == pytest.approx((10.0, 26.0))


def test_count_wrong_of_barrier_counts_ranks_that_left_early() -> None:
    options = parse(["--op", "barrier", "--nproc", "3"])[0]
    good = [Checked(0, entered, 100 + entered) for entered in (0, 10, 20)]
    assert count_wrong(good, options) == 0
    assert count_wrong([Checked(0, 0, 19), *good[1:]], options) == 1


def test_table_with_comparison_prints_both_rows_and_the_ratio() -> None:
    table = Table(parse(["--compare", "gloo"])[0])
    ours, theirs = table.row(_row([100.0], [1000.0]))
    assert ours.split()[:6] == ["64000000", "16000000", "float32", "sum", "hccl", "100"]
    assert theirs.split()[-2:] == ["10.0x", "10.0-10.0"]
    assert len(ours) == len(theirs) == len(table.header(first=True)[0])
