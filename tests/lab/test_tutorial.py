"""Every step of `docs/internals/algorithms.md`, as written there: proved, and run by the engine."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from hccl_py import Communicator
from hccl_py.lab.plan_command.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "internals" / "algorithms.md").read_text()
CODE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
MISTAKES = re.findall(r"```text\n(all_reduce=mine\.py:(\w+) is wrong .*?)\n```", PAGE, re.DOTALL)
RIGHT = ("naive", "ring", "two_rings", "chain", "round_trip", "two_levels")
MANY = pytest.mark.nightly("plans")
LAYOUTS = ("aab", *(pytest.param(layout, marks=MANY) for layout in ("a", "abbab", "aabbcc")))
FEW = ("--nodes", "3", "--nodes", "2,3")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tutorial") / "mine.py"
    path.write_text(CODE)
    return path


def test_all_functions_of_the_page_are_tested() -> None:
    assert re.findall(r"^def (\w+)", CODE, re.MULTILINE) == [
        *("naive", "ring", "double", "short"),
        *RIGHT[2:],
    ]
    assert [name for _, name in MISTAKES] == ["double", "short"]


@pytest.mark.parametrize("nodes", [FEW, pytest.param((), marks=MANY)])
@pytest.mark.parametrize("name", RIGHT)
def test_step_is_proved(
    name: str, nodes: tuple[str, ...], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{file}:{name}", *nodes]) == 0
    assert re.match(rf"\w+=mine.py:{name} is right in \d+ cases?: ", capsys.readouterr().out)


@pytest.mark.parametrize(("text", "name"), MISTAKES)
def test_mistake_is_explained_as_on_the_page(
    text: str, name: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{file}:{name}", "--nodes", "4"]) == 1
    assert capsys.readouterr().err == f"hccl-plan check: {text}\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_run_in_the_engine(layout: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = len(layout)
    inputs = [np.random.default_rng(rank).integers(0, 1 << 40, 90_001) for rank in range(n)]

    def run(comm: Communicator) -> None:
        mine, root = inputs[comm.rank], n - 1
        for count in (0, 3, 90_001):
            total = np.sum(inputs, axis=0)[:count]
            data = mine[:count].copy()
            comm.all_reduce(data)
            np.testing.assert_array_equal(data, total)
            data = mine[:count].copy()
            comm.reduce(data, root)
            np.testing.assert_array_equal(data, total if comm.rank == root else mine[:count])
        uneven = [np.zeros(7 * rank, np.int64) for rank in range(n)]
        comm.all_gather(uneven, mine[: 7 * comm.rank])
        expected = [inputs[rank][: 7 * rank] for rank in range(n)]
        np.testing.assert_array_equal(np.concatenate(uneven), np.concatenate(expected))

    others = [f"{file}:{name}" for name in ("chain", "round_trip")]
    for name in ("naive", "ring", "two_rings", "two_levels"):
        monkeypatch.setenv("HCCL_ALGORITHM", ",".join([f"all_reduce={file}:{name}", *others]))
        with ThreadRanks(layout) as ranks:
            ranks.run(run)


def test_last_step_is_raced_against_the_table(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contenders = f"{file}:two_levels,{file}:ring"
    words = ["-g", "2", "--nnodes", "2", "--sizes", "1M", "-n", "2", "--algorithm", contenders]
    bench = pytest.importorskip("hccl_py.bench.collective.main")
    assert bench.main([*words, "--api", "communicator", "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["by"] for row in rows] == ["hccl", "mine.py:two_levels", "mine.py:ring"]
    assert {row["wrong_elements"] for row in rows} == {"0"} and float(rows[1]["ratio"]) > 0
