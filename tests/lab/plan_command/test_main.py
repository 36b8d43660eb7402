"""`hccl-plan` on the command line: what it prints, and one line for wrong arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hccl_py import command_line
from hccl_py.algorithms.table import ALGORITHMS
from hccl_py.lab.plan_command.main import main


def test_list_has_every_algorithm_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["=".join(names) for names in ALGORITHMS]
    assert lines[2].endswith("2(n-1) steps, 2(n-1)/n of the data sent: least traffic, most steps")
    assert all(line.split()[1:] for line in lines), "an algorithm without a cost"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    predict = ["predict", "--preset", "gaudi2", "--nodes", "2", "--size", "1M"]
    for arguments in (["list"], ["check", "all_reduce=mesh"], predict):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= max(width, 76), "a chart has 76 columns"
    assert out.count(" (fastest)") == 1


def test_output_that_its_reader_cuts_off_ends_in_silence() -> None:
    command = "hccl-plan show all_reduce=ring --nodes 64 | head -1; exit ${PIPESTATUS[0]}"
    folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert (done.stdout.count("\n"), done.stderr, done.returncode) == (1, "", 141)


def test_show_prints_the_plan_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["broadcast=direct", "--nodes", "2,1", "--root", "1"]
    assert main(["show", *arguments, "--rank", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "broadcast/direct, rank 2 of 3, root 1, 1 chunks",
        "0  recv data[0] from 1",
    ]
    assert main(["show", *arguments]) == 0
    assert capsys.readouterr().out.count("broadcast/direct, rank ") == 3


def test_predict_takes_algorithms_of_the_table_and_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import hccl_py\nfrom hccl_py.algorithms import ring\n"
        "mine = hccl_py.algorithm('all_reduce', chunks=lambda n, nodes: n)(ring.all_reduce)\n"
    )
    arguments = ["--preset", "office1", "--nodes", "2", "--size", "64K"]
    assert main(["predict", *arguments, "--algorithm", "ring,mine.py:mine"]) == 0
    assert "mine.py:mine" in capsys.readouterr().out


def test_check_proves_an_algorithm_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "reduce=tree", "--nodes", "3", "--nodes", "1,1"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("reduce=tree is right in 5 cases: ")
    assert main(["check", "all_reduce=ring", "--nodes", "3"]) == 0
    assert " is right in 1 case: " in capsys.readouterr().out
    assert second == "It was proved for nodes of these sizes, each root: 3; 1,1"


def test_check_of_the_bound_counts_what_an_algorithm_serves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import hccl_py\nfrom hccl_py.algorithms import direct\n"
        "rule = hccl_py.algorithm('all_reduce', when=lambda n, nodes: n == 4 and len(nodes) == 2)\n"
        "mine = rule(direct.all_reduce)\n"
    )
    assert main(["check", "mine.py:mine", "--bound"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert " is right in 3 cases: " in out  # 1+3, 2+2 and 3+1
    assert "proved for 1 to 64 ranks on one node" in out
    assert "does not serve 457 other cases" in out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            "show all_reduce=rng",
            "expected FILE:FUNCTION, plan:FILE or one of all_reduce=one_shot, mesh",
        ),
        ("show mine.py:ring", "mine.py: expected a Python file"),
        ("show all_reduce=ring --nodes 4,", "or 512x8 for 512 nodes of 8, up to 262144; got '4,'"),
        ("show all_reduce=ring --nodes 9999999999", "up to 262144; got '9999999999'"),
        ("show all_reduce=ring --nodes 65536x65536", "up to 262144; got '65536x65536'"),
        ("show all_reduce=ring --nodes 4 --rank 4", "--rank: expected one of 0..3, got 4"),
        ("draw reduce=tree --nodes 4 --root 4", "--root: expected one of 0..3, got 4"),
        ("show all_reduce=ring --root 1", "--root: expected none, as all_reduce=ring has no root"),
        ("calibrate none.json", "none.json: No such file or directory"),
        ("draw all_reduce=ring --preset office1", "expected --size or --trace with it"),
        ("draw all_reduce=ring --costs t.json --size 1M", "or a file, got 't.json'"),
        ("draw all_reduce=ring --size 1M", "--size: expected --preset or --costs with it"),
        ("draw all_reduce=ring --call 3", "--call: expected --trace with it"),
        ("draw all_reduce=ring --trace .", "--trace: .: there is no flight_recorder_rank_"),
    ],
)
def test_wrong_argument_gets_one_line(
    arguments: str,
    problem: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("draw all_reduce=ring --preset home --size 1M", "choose from 'gaudi2', 'gaudi3', "),
        ("predict --preset office1 --costs t.json", "not allowed with argument --preset"),
        ("predict --preset office1 --node 2", "is it --nodes?"),
        ("check all_reduce=ring --nodes 3 --bound", "not allowed with argument --nodes"),
        ("draw all_reduce=ring -o /no/page.html", "there is no folder /no"),
        ("export all_reduce=ring --nodes 4 -o /no/ring.xml", "there is no folder /no"),
        ("draw all_reduce=ring -o ring.gif", "expected a name that ends in .html, .htm, .svg"),
        ("draw all_reduce=ring -o ring.png", "needs matplotlib: pip install"),
    ],
)
def test_wrong_option_gets_one_line(
    arguments: str,
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
