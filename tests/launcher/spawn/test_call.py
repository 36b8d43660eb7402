"""hccl_py.spawn in a script: results, failures, time limits, and that nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from quiet_clock import HANG_S
from tiers import by_night

import hccl_py
from hccl_py.launcher.spawn import call

SCRIPT = """
import json, os, signal, sys, time, traceback
import numpy as np
import hccl_py

def work(how, scale=1):
    with hccl_py.Communicator() as comm:
        data = np.full(3, comm.rank + 1.0) * scale
        comm.all_reduce(data)
        print("rank", comm.rank, flush=True)
        if comm.rank == 1:
            if how == "raise":
                raise ValueError("the reason")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit":
                sys.exit(3)
            if how == "generator":
                return (one for one in data)
            if how == "sleep":
                print("asleep", os.getpid(), os.getppid(), flush=True)
                time.sleep(1000)
            comm.barrier()
            return data.tolist()
        comm.barrier()
        return data.tolist()

limit_s = float(sys.argv[2]) if sys.argv[2:] else None
try:
    print(json.dumps(hccl_py.spawn(work, (sys.argv[1],), {"scale": 2}, nproc=2, timeout_s=limit_s)))
except Exception as error:
    print(json.dumps([type(error).__name__, vars(error), str(error.__cause__)]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *words: object) -> tuple[list[str], Any]:
    command = [sys.executable, script, *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    *printed, result = ran.stdout.splitlines()
    assert "Traceback" not in ran.stderr
    return [line.partition("] ")[2] for line in printed], json.loads(result)


def test_spawn_returns_what_each_rank_of_a_script_returned(script: Path) -> None:
    printed, returned = run(script, "return")
    assert returned == [[6.0] * 3] * 2
    assert sorted(printed) == ["rank 0", "rank 1"]


def test_spawn_raises_the_first_failure_with_its_traceback_as_the_cause(script: Path) -> None:
    _, (name, error, cause) = run(script, "raise")
    assert (name, error) == ("RankFailedError", {"rank": 1, "kind": "ValueError", "exit_code": 1})
    lines = cause.strip().splitlines()
    assert lines[1].startswith(f'  File "{script}", line')
    assert 'raise ValueError("the reason")' in lines[2]
    assert lines[-1] == "ValueError: the reason"


@pytest.mark.parametrize(
    ("how", "expected"),
    by_night(
        "launchers",
        ("kill", {"rank": 1, "kind": "", "exit_code": -signal.SIGKILL}),
        ("exit", {"rank": 1, "kind": "SystemExit", "exit_code": 3}),
        ("generator", {"rank": 1, "kind": "TypeError", "exit_code": 1}),
    ),
)
def test_spawn_names_a_rank_that_ends_otherwise(
    script: Path, how: str, expected: dict[str, Any]
) -> None:
    _, (name, error, _) = run(script, how)
    assert (name, error) == ("RankFailedError", expected)


def has_ended(pid: int) -> bool:
    with suppress(OSError):
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return True


@pytest.mark.nightly("launchers")
def test_spawn_ends_the_ranks_at_its_time_limit(script: Path) -> None:
    printed, (name, _, _) = run(script, "sleep", 15)
    (asleep,) = [line.split() for line in printed if line.startswith("asleep")]
    assert name == "TimeoutError"
    assert has_ended(int(asleep[1]))


@pytest.mark.parametrize("number", [signal.SIGINT, *by_night("launchers", signal.SIGKILL)])
def test_spawn_leaves_no_process_when_its_caller_is_interrupted_or_killed(
    script: Path, number: signal.Signals
) -> None:
    command = [sys.executable, script, "sleep"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as ran:
        assert ran.stdout is not None
        line = next(line for line in ran.stdout if "asleep" in line)
        pids = [int(word) for word in line.split()[-2:]]
        os.kill(ran.pid, number)
        _, errors = ran.communicate(timeout=HANG_S)
    assert ran.returncode == -number
    if number == signal.SIGINT:
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
    end_s = time.monotonic() + HANG_S
    while not all(map(has_ended, pids)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert all(map(has_ended, pids))


def test_spawn_rejects_wrong_arguments() -> None:
    with pytest.raises(hccl_py.InvalidArgumentError, match="function"):
        hccl_py.spawn("work", nproc=2)  # type: ignore[arg-type]
    for nproc in (0, -1, 1.5):
        with pytest.raises(hccl_py.InvalidArgumentError, match="nproc"):
            hccl_py.spawn(print, nproc=nproc)  # type: ignore[arg-type]
    with pytest.raises(hccl_py.InvalidArgumentError, match="timeout_s"):
        hccl_py.spawn(print, nproc=1, timeout_s=0)
    with pytest.raises(hccl_py.InvalidArgumentError, match="pickle"):
        hccl_py.spawn(print, [(one for one in ())], nproc=1)


def test_spawn_without_cloudpickle_takes_functions_of_modules_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "find_spec", lambda _: None)

    def local() -> None: ...

    local.__module__, local.__qualname__ = "__main__", "local"
    monkeypatch.setattr(sys.modules["__main__"], "local", local, raising=False)
    with pytest.raises(hccl_py.InvalidArgumentError, match=r"cloudpickle: pip install .*notebook"):
        hccl_py.spawn(local, nproc=1)
    assert hccl_py.spawn(os.getenv, ("RANK",), nproc=2) == ["0", "1"]
