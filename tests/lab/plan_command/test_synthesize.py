"""`hccl-plan synthesize`: files, certificates, and one line for wrong arguments."""

import subprocess
import sys
from pathlib import Path

import pytest
from networks import EVEN, PAIRS, between, network_of

from hccl_py.algorithms.loading import loaded
from hccl_py.lab.plan_command.main import main
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_a_file_for_each_collective_that_every_command_takes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network_of(PAIRS, folder)
    assert main(["synthesize", "network.json", "--chunks", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::5]] == [f"{one}.json" for one in SYNTHESIZED]
    assert lines[0] == "all_reduce.json: all_reduce by 4 trees reaches 85.6% of the bound"
    assert (
        "at most 233.3 Mbit/s of the data in a simulated call; the busiest link alone " in lines[1]
    )
    assert lines[2].startswith("  bottleneck: ranks 0 | 1 | 2 | 3: 6 times the data must leave")
    assert lines[3].startswith("  algorithms of the table: mesh 42.9%, ")
    assert lines[4] == "  run it with HCCL_ALGORITHM=all_reduce=plan:all_reduce.json"
    assert "broadcast by 4 trees from root 0, the worst, reaches" in lines[5]
    for collective in SYNTHESIZED:
        place = f"{collective}=plan:{collective}.json"
        assert main(["check", place]) == 0
        cases = 4 if collective == "broadcast" else 1
        assert f"is right in {cases} case" in capsys.readouterr().out
        assert main(["show", place, "--rank", "3"]) == 0
        assert f"{collective}/plan:{collective}.json, rank 3 of 4" in capsys.readouterr().out
    assert main(["draw", "all_reduce=plan:all_reduce.json"]) == 0
    assert "85.6% of the bound" in Path("plan.html").read_text()
    words = "predict --preset office1 --nodes 4 --size 64K --algorithm mesh,plan:all_reduce.json"
    assert main(words.split()) == 0
    assert "plan:all_reduce.json  fastest" in capsys.readouterr().out


def test_even_links_keep_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network_of(EVEN, folder)
    assert (
        main(["synthesize", "network.json", "--collective", "all_reduce", "--out", "mine.json"])
        == 0
    )
    first = "mine.json: all_reduce by the table's mesh reaches 100.0% of the bound"
    assert capsys.readouterr().out.splitlines()[0] == first
    assert loaded("plan:mine.json").cost.startswith("mesh, 100.0% of the bound; the bottleneck is")


def test_links_that_no_message_takes_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network_of([between(0, "s", 100), between(1, "s", 100), between(0, 1, 10)], folder)
    assert main(["synthesize", "network.json", "--collective", "broadcast"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("links that no message takes") and "0 > 1 10 Mbit/s" in first


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("none.json", "none.json: No such file or directory"),
        ("network.json --out p.json", "--out: expected one --collective with it"),
        ("network.json --chunks 0", "expected 1 to 32 chunks, got 0"),
        ("network.json --chunks 33", "expected 1 to 32 chunks, got 33"),
        (
            "network.json --collective all_reduce --out no/p.json",
            "no/p.json: No such file or directory",
        ),
    ],
)
def test_wrong_argument_gets_one_line(
    arguments: str, problem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network_of([between(0, 1, 100)], folder)
    assert main(["synthesize", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"hccl-plan synthesize: {problem}"


def test_unknown_collective_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["synthesize", "network.json", "--collective", "barrier"])
    assert "expected some of all_reduce, broadcast, all_gather" in capsys.readouterr().err


def test_a_job_that_does_not_ask_imports_nothing_of_it() -> None:
    program = (
        "import hccl_py, sys; from hccl_py.communicator import Communicator; "
        "print([name for name in sys.modules if 'synthesis' in name or 'plan_file' in name])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
