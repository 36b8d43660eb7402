"""The benchmarks that hccl-bench runs with contenders of their own."""

import csv

import pytest

from benchmarks.check_cost import main as check_cost
from benchmarks.compiled import main as compiled
from benchmarks.replay import main as replay
from benchmarks.window import main as window

_FEW = ["-g", "2", "--sizes", "4", "-n", "2", "-w", "0", "--csv"]


def _rows(printed: str) -> list[tuple[str, str]]:
    rows = list(csv.DictReader(printed.splitlines()))
    assert {row["wrong_elements"] for row in rows} == {"0"}
    return [(row["collective"], row["by"]) for row in rows]


def test_check_cost_measures_beside_a_communicator_that_compares_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check_cost([*_FEW, "--test", "all_reduce,all_gather"]) == 0
    both = ("checked", "unchecked")
    expected = [(op, by) for op in ("all_reduce", "all_gather") for by in both]
    assert _rows(capsys.readouterr().out) == expected


@pytest.mark.nightly("bench")
def test_replay_measures_all_ways_to_make_several_calls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay(["3", *_FEW]) == 0
    ways = [by for _, by in _rows(capsys.readouterr().out)]
    assert ways == ["replay", "one by one", "group()", "dist"]


@pytest.mark.nightly("bench")
def test_window_measures_puts_beside_copies(capsys: pytest.CaptureFixture[str]) -> None:
    assert window(["--rounds", "1"]) == 0
    sizes = [row.split("|")[1].strip() for row in capsys.readouterr().out.splitlines()[2:]]
    assert sizes == ["4", "4096", "65536", "1048576", "67108864", "signal"]


@pytest.mark.nightly("bench")
def test_compiled_measures_a_step_eager_and_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert compiled(["--rounds", "1"]) == 0
    rows = [row.split("|") for row in capsys.readouterr().out.splitlines()[2:]]
    ways = [row[1].partition(",")[0].strip() for row in rows]
    assert ways == ["eager", "compiled", "compiled", "eager", "compiled"]
