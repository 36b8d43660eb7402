"""The command end to end, with real rank processes; gloo stands in where hccl is not the point."""

import csv
import fcntl
import json
import math
import multiprocessing
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from quiet_clock import HANG_S, Moment
from rank_processes import is_alive
from thread_ranks import wait_until

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contender import Open
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.main import main, run
from hccl_py.bench.collective.output.counters import describe
from hccl_py.bench.collective.rank import serve
from hccl_py.bench.collective.ranks import RankFailure
from hccl_py.transport.network.system_calls import available_memory

_SHORT = ["--nproc", "2", "--iters", "2", "-w", "0", "--timeout", str(HANG_S)]
_GLOO: dict[str, Open] = {"gloo": Api("gloo")}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of faulty contenders, importable in rank processes too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import faulty

    return faulty


def _run(arguments: Sequence[str], contenders: dict[str, Open]) -> int:
    argv = [*_SHORT, *arguments]
    return run(parse(argv), shlex.join(["hccl-bench", *argv]), contenders)


@pytest.fixture(autouse=True)
def _no_rank_is_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("part", ["--place out", "--place in", "--place out --compare gloo"])
def test_sizes_beyond_the_memory_are_refused(part: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each contender has its own buffers, and out of place one more."""
    num_buffers = (1 if "in" in part.split() else 2) * (2 if "gloo" in part else 1)
    size = available_memory() // num_buffers  # there are two ranks
    assert main([*_SHORT, *part.split(), "--sizes", str(size)]) == 2
    assert str(size) in capfd.readouterr().err


MORE = pytest.mark.nightly("bench")


@MORE
@pytest.mark.parametrize("api", ["torch", "communicator"])
def test_main_measures_compressions_beside_hccl_and_finds_nothing_wrong(
    api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--nnodes", "2", "--compression", "all", "--sizes", "256K", "--op", "sum,avg"]
    arguments += ["--api", api, "--test", "all_reduce,reduce_scatter", "-v"]
    assert main([*_SHORT, *arguments]) == 0
    names = ("hccl", "bf16", "int8")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[0:1] != "#"]
    assert [row[6] for row in rows if row[0:1] == ["262144"]] == [*names] * 4


@MORE
def test_main_measures_what_reproducible_reductions_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--nnodes", "2", "--reproducible", "--sizes", "256K", "--csv"]
    assert main([*_SHORT, *arguments]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["by"], row["wrong_elements"]) for row in rows] == [
        ("hccl", "0"),
        ("reproducible", "0"),
        ("exact", "0"),
    ]


@pytest.mark.parametrize(
    "way",
    [
        ["--api", "communicator"],
        pytest.param(["--api", "torch", "--compare", "gloo"], marks=MORE),
    ],
)
def test_main_measures_every_op_and_finds_nothing_wrong(
    way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--test", "all", "--nproc", "3", "--sizes", "4,4099", "--place", "both", "--csv"]
    assert main([*_SHORT, *arguments, *way]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    names = ["hccl", "gloo"] if "gloo" in way else ["hccl"]
    expected = []
    for op, case in CASES.items():
        expected += [(op, name) for name in names] * len(case.places) * (2 if case.has_data else 1)
    assert [(row["collective"], row["by"]) for row in rows] == expected
    assert {row["wrong_elements"] for row in rows} == {"0"}
    # Beside it may stand that the machine was busy.
    assert all("only 2 calls" in row["doubt"] for row in rows), "too few to be trusted"
    assert all(float(row["time_us"]) > 0 for row in rows)
    for row in rows:  # a program reads them
        values = [value for name, value in row.items() if "_" in name or name == "ratio"]
        assert all(not value or math.isfinite(float(value)) for value in values), row


def test_run_with_json_writes_machine_versions_command_and_spread(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    both = {"first": Api("gloo"), **_GLOO}
    arguments = ["--compare", "gloo", "--iters", "5", "--sizes", "1K,4K", "--json", str(path)]
    assert _run(arguments, both) == 0
    written = json.loads(path.read_text())
    assert written["command"].startswith("hccl-bench --nproc 2") and "--json" in written["command"]
    assert written["machine"].keys() == {"cpu", "usable_cores", "memory_gib", "system"}
    assert written["versions"].keys() == {"hccl-py", "torch", "numpy", "python"}
    assert written["date"].endswith("+00:00")
    (measured,) = written["collectives"]
    assert measured["options"]["collective"] == "all_reduce"
    assert [size["size"] for size in measured["sizes"]] == [1024, 4096]
    for size in measured["sizes"]:
        assert size["contenders"].keys() == {"first", "gloo"}
        for measured in size["contenders"].values():
            assert 0 < measured["time_us"]["p10"] <= measured["time_us"]["median"]
            assert measured["time_us"]["median"] <= measured["time_us"]["p90"]
            assert measured["rounds"] * measured["calls_per_round"] == 5
            assert measured["wrong"] == 0
            calls = measured["calls_us"]
            assert 0 < calls["p50"] <= calls["p90"] <= calls["p99"] <= calls["max"]
            assert len(measured["ranks_us"]) == 2 and measured["limit_share"] > 0
        medians = [size["contenders"][name]["time_us"]["median"] for name in ("first", "gloo")]
        assert size["ratio"]["gloo"]["median"] == pytest.approx(medians[1] / medians[0])


@MORE
def test_run_writes_a_plot_and_csv(tmp_path: Path) -> None:
    png, table = tmp_path / "both.png", tmp_path / "both.csv"
    arguments = ["--test", "broadcast,barrier", "--sizes", "4,4K", "--plot", str(png)]
    assert _run([*arguments, "-F", str(table)], _GLOO) == 0
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["collective"], row["size_bytes"]) for row in rows] == [
        ("broadcast", "4"),
        ("broadcast", "4096"),
        ("barrier", "0"),
    ]


# 64K takes its steps on the board, with payloads that do not fit there.
@pytest.mark.parametrize(
    ("nodes", "size"), [pytest.param(1, "64K", marks=MORE), (1, "1M"), (2, "1M")]
)
def test_profile_splits_the_time_of_a_call_into_its_parts(
    nodes: int, size: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    ranks = ["--nnodes", str(nodes), "-g", str(2 // nodes), "--sizes", size, "--json", str(path)]
    assert main([*_SHORT, *ranks, "--profile"]) == 0
    (measured,) = json.loads(path.read_text())["collectives"][0]["sizes"]
    for parts in measured["profile_us"]:
        total = parts.pop("total")
        assert sum(parts.values()) == pytest.approx(total, rel=0.05)
        assert parts["reduce"] > 0
        assert (parts["wire"] > 0, parts["copy"] > 0) == (nodes == 2, nodes == 1)


def test_run_wrong_result_is_counted_and_fails(
    faulty: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["--sizes", "4,1K"], {"hccl": faulty.OffByOne, **_GLOO}) == 1
    captured = capsys.readouterr()
    assert "2 wrong elements" in captured.err
    rows = [line.split() for line in captured.out.splitlines() if line[0] == " "][1:]
    assert [(row[6], row[15]) for row in rows] == [("hccl", "1"), ("gloo", "0")] * 2


def test_run_barrier_that_waits_for_nobody_is_wrong(faulty: ModuleType) -> None:
    assert _run(["--test", "barrier", "--nproc", "4"], {"hccl": faulty.DoesNothing}) == 1


def test_run_rank_that_is_killed_is_named_with_its_signal(faulty: ModuleType) -> None:
    with pytest.raises(RankFailure, match=r"rank 1 died checking hccl at 4 B .*: signal SIGKILL"):
        _run(["--sizes", "4"], {"hccl": faulty.Dies})


@MORE
def test_run_that_hangs_ends_at_its_deadline_and_names_who_is_late(faulty: ModuleType) -> None:
    start = Moment.now()
    # Gloo's own limit on rank 0 is no longer than the run's: either may be noticed first.
    with pytest.raises(RankFailure, match=r"rank (0|0, 1|1) .*checking hccl at 4 B"):
        _run(["--sizes", "4", "--timeout", "6"], {"hccl": faulty.Hangs})
    assert Moment.now() - start < 12


STOPPED = {signal.SIGKILL: -9, signal.SIGTERM: 130, signal.SIGINT: 130}


@pytest.mark.nightly("faults")
@pytest.mark.parametrize(("sent", "code"), STOPPED.items())
def test_main_that_is_stopped_leaves_no_rank(tmp_path: Path, sent: int, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "faulty.py"), *_SHORT, "--sizes", "4"],
        env=os.environ | {"FAULTY_PIDS": str(tmp_path)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks hang")
        os.killpg(command.pid, sent) if sent == signal.SIGINT else command.send_signal(sent)
        _, message = command.communicate(timeout=HANG_S)
    assert command.returncode == code
    assert message == ("hccl-bench: interrupted\n" if sent != signal.SIGKILL else "")
    pids = [int(file.name) for file in tmp_path.iterdir()]
    wait_until(lambda: not any(map(is_alive, pids)), "the ranks end")


@MORE
def test_rank_whose_command_is_gone_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    here.close()
    rank = context.Process(target=serve, args=(there, 0, None, {}, ()))
    rank.start()
    rank.join(HANG_S)
    assert (rank.exitcode, capfd.readouterr().err) == (1, "")


@MORE
def test_wrong_algorithm_is_told_in_one_line() -> None:
    """In a process of its own: the server that ranks are forked from keeps its environment."""
    arguments = [*_SHORT, "--sizes", "4K", "--api", "communicator"]
    ended = subprocess.run(
        [sys.executable, "-m", "hccl_py.bench.collective.main", *arguments],
        env=os.environ | {"HCCL_ALGORITHM": "all_reduce=fastest"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert line.startswith("hccl-bench: rank ")
    assert "there is no 'all_reduce=fastest'; there are all_reduce: one_shot, " in line


def test_latency_is_that_of_the_slowest_rank_of_each_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    arguments = ["--api", "communicator", "--sizes", "8", "--json", str(path)]
    assert main([*_SHORT, *arguments, "--measure", "latency", "--iters", "40"]) == 0
    method = "time: median over rounds of the median over calls, each of its slowest rank"
    assert method in capsys.readouterr().out
    (measured,) = json.loads(path.read_text())["collectives"]
    assert measured["options"]["measure"] == "latency"
    (size,) = measured["sizes"]
    ours = size["contenders"]["hccl"]
    assert ours["time_us"]["median"] >= max(ours["ranks_us"]), "no rank's median is above it"
    with pytest.raises(SystemExit, match="2"):
        main([*_SHORT, *arguments, "--measure", "speed"])


@MORE
def test_on_a_terminal_the_table_is_alive() -> None:
    """It says what is measured right now, below the rows that it has."""
    command = [str(Path(sys.executable).with_name("hccl-bench")), "--timeout", str(HANG_S)]
    command += ["--nproc", "2", "--api", "communicator", "--sizes", "4,4K"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # at its end
            while more := os.read(ours, 4096):
                shown += more
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "timing hccl at 4096 B" in text and "busbw" in text
    assert re.findall(r"[mK] +(4|4096) ", text) == ["4", "4096"], "rows, plain or in color"


def test_several_collectives_have_a_table_each(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--test", "reduce,barrier", "--sizes", "4K", "--api", "communicator"]
    assert main([*_SHORT, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(lines[4]) == 2, "the header of each table"
    assert lines[lines.index(lines[4], 5) - 1] == "# barrier"
    (summary,) = [line for line in lines if "doubtful" in line]
    assert summary == "# 2 of 2 sizes are doubtful (!):"
    assert "#   2 times, first: only 2 calls" in lines[lines.index(summary) :]


def test_verbose_prints_what_a_path_carried_and_no_lane_never_used_as_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--nproc", "1", "--nnodes", "2", "--sizes", "4K", "--iters", "20", "-v"]
    assert main([*_SHORT, *arguments]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "down" not in line
    assert int(line.split()[3]) > 20 * 2048, "bytes"


@pytest.mark.parametrize(("rate", "shown"), [(0.0, "-"), (1e9, "1.00")])
def test_path_that_was_never_busy_has_no_rate(rate: float, shown: str) -> None:
    numbers = dict.fromkeys(("messages", "bytes", "stalls", "retries", "reconnects"), 1)
    path = numbers | {"peer": 1, "path": "link0", "bytes_per_second": rate, "connected": True}
    totals = dict.fromkeys(("collectives", "rendezvous", "sleeps", "doorbells"), 1)
    counted: Any = totals | {"devices": {"tcp": numbers}, "paths": [path]}
    assert describe(counted).splitlines()[-1].split()[-3:] == ["100.0%", shown, "link0"]


def test_markdown_says_in_the_row_why_it_cannot_be_trusted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*_SHORT, "--api", "communicator", "--sizes", "4", "--markdown"]) == 0
    *_, doubt, end = capsys.readouterr().out.splitlines()[-1].split("|")
    assert doubt.startswith(" ! ") and "only 2 calls" in doubt and not end
