"""Jobs that torch.distributed.run has: their ends, their signals and what they keep."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import COMMAND, job, launch
from quiet_clock import HANG_S

ELASTIC = ("--nnodes", "1:2", "--standalone", "--rdzv-conf", "last_call_timeout=1", "--nproc", 2)
FAILS = """
import os, sys, time
names = ("RANK", "WORLD_SIZE", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
if os.environ["RANK"] == "1":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("no image")
    sys.exit(5)
time.sleep(1000)
"""
WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"warned\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.write(1, b"saved\\n") - 6))
os.write(1, b"ready\\n")
while True: time.sleep(1)
"""


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(body)
    return path


@pytest.mark.nightly("launchers")
def test_failure_starts_all_again_and_the_last_one_gives_the_exit_code(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = (*ELASTIC, "--max-restarts", 1, "--log-dir", logs, "--rdzv-id", "job")
    done = launch(*options, write(tmp_path, FAILS))
    assert done.returncode == 5, done.stderr
    lines = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert lines == ["0 2 0 0", "0 2 0 1", "1 2 0 0", "1 2 0 1"]
    assert done.stderr.count("ValueError: no image") == 1
    assert done.stderr.count("will restart") == 1
    assert "hccl-launch: rank 1 exited with code 5" in done.stderr.splitlines()[-1]
    (kept,) = logs.glob("job_*/attempt_0/1/stderr.log")
    assert "ValueError: no image" in kept.read_text()


def test_signals_reach_the_ranks_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = write(tmp_path, WAITS)
    with job(*COMMAND, *ELASTIC, script) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        for number, text in ((signal.SIGUSR1, "warned"), (signal.SIGTERM, "saved")):
            process.send_signal(number)
            assert [process.stdout.readline() for _ in range(2)] == [f"{text}\n"] * 2
        _, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (
        128 + signal.SIGTERM,
        "hccl-launch: stopped by SIGTERM; all ranks were ended\n",
    )
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(
    "option", ["--bind core", "--prefix always", "--check", "--min-ranks 1", "--dry-run"]
)
def test_option_that_torch_does_not_have_is_refused(tmp_path: Path, option: str) -> None:
    done = launch(*ELASTIC, *option.split(), write(tmp_path, WAITS))
    assert done.returncode == 2
    assert f"hccl-launch: error: {option.split()[0]}: " in done.stderr
