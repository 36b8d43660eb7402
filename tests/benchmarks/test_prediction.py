"""What was measured beside what is predicted: the report of recorded cases, and one real run."""

import json
from pathlib import Path

import pytest

from benchmarks.prediction.__main__ import main
from benchmarks.prediction.measure import TimedCase, merged
from hccl_py.algorithms.table import names_for


def test_merged_cells_have_the_rounds_of_all_visits() -> None:
    one = TimedCase(2, 1, 100.0, "ring", 65536, (3.0, 4.0))
    other = one._replace(algorithm="mesh")
    (first, second) = merged([one, other, one._replace(rounds_us=(2.0,))])
    assert first.rounds_us == (3.0, 4.0, 2.0)
    assert second == other


def test_show_says_how_many_cells_are_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    # A MiB each way takes at least 10.7 ms at 100 Mbit/s and half of the data.
    cases = [TimedCase(2, 1, 100.0, "mesh", 1 << 20, (us,)) for us in (90_000.0, 1e9)]
    cases.append(TimedCase(1, 2, None, "ring", 4096, (1.0,)))
    machine = {"cpu": "a processor", "usable_cores": 2, "system": "Linux"}
    recorded = {"command": "recorded", "machine": machine, "versions": {}, "date": "today"}
    recorded |= {"results": [case._asdict() for case in cases], "failures": []}
    path.write_text(json.dumps(recorded))
    assert main(["--show", str(path), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "### 2 × 1 ranks, 100 Mbit/s" in printed and "### 1 × 2 ranks, no limit" in printed
    assert "1 of 1 cases bound by the network within 15% (100%)" in printed
    assert "0 of 1 cases not bound by the network within 25% (0%); the worst: ring, 4 KB" in printed


@pytest.mark.parametrize("costs", ["/nowhere/costs.json", __file__])
def test_costs_that_cannot_be_read_are_named_in_one_line(
    costs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--costs", costs])
    message = capsys.readouterr().err
    assert costs in message and message.count("\n") == 1


@pytest.mark.nightly("bench")
def test_main_measures_every_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    words = ["--ranks", "2", "--rates", "none", "--sizes", "64K", "--json", str(path)]
    assert main(words) == 0
    results = json.loads(path.read_text())["results"]
    assert [each["algorithm"] for each in results] == list(names_for("all_reduce"))
    assert all(min(each["rounds_us"]) > 0 for each in results)
