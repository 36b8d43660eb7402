"""Every byte that a rank wrote is printed, or the launcher says what was not."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import COMMAND, agent_of, job, launch, ranks_of, run
from quiet_clock import HANG_S, over_after

from hccl_py.launcher.output.lines import MARK

LINES = 20_000
PRINTS = f"import os\nfor number in range({LINES}): print(os.environ['RANK'], number, 'x' * 60)"


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(body)
    return path


def wait_for_ranks_to_end(process: subprocess.Popen[str]) -> None:
    is_over = over_after(HANG_S)
    agent_of(process)
    while ranks_of(process):
        assert not is_over()
        time.sleep(0.02)


@pytest.mark.nightly("launchers")
def test_reader_that_comes_late_gets_every_line(tmp_path: Path) -> None:
    with job(*COMMAND, "--nproc", 2, write(tmp_path, PRINTS)) as process:
        assert process.stdout is not None
        time.sleep(12)
        found = process.stdout.read().splitlines()
    assert process.returncode == 0
    for rank in range(2):
        mine = [int(line.split()[1]) for line in found if line.startswith(f"{rank} ")]
        assert mine == list(range(LINES))


def test_stop_while_nobody_reads_says_that_lines_are_missing(tmp_path: Path) -> None:
    # More than a pipe holds, and less than the launcher reads ahead.
    body = "import os\nos.write(1, b'x' * 199_999 + b'\\n')\nos.write(2, b'done\\n')"
    with job(*COMMAND, "--nproc", 2, write(tmp_path, body)) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == ["done\n"] * 2
        wait_for_ranks_to_end(process)
        assert process.poll() is None, "it waits for its reader, as any program does"
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert "bytes of output were not printed" in error


def test_reader_that_leaves_after_the_ranks_have_ended_is_an_error(tmp_path: Path) -> None:
    body = "import os\nos.write(1, b'x' * 199_999 + b'\\n')\nos.write(2, b'done\\n')"
    with job(*COMMAND, "--nproc", 2, write(tmp_path, body)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == ["done\n"] * 2
        wait_for_ranks_to_end(process)
        process.stdout.close()
        process.stdout = None
        error = process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE
    assert "cannot print any more (Broken pipe)" in error


def test_bytes_that_are_no_text_reach_screen_and_log_as_they_are(tmp_path: Path) -> None:
    body = """
import os
data = bytes(range(256)) * 2000 + b"\\x00" * 300_000 + b"end without a line end"
while data:
    data = data[os.write(1, data):]
"""
    logs = tmp_path / "logs"
    command = (*COMMAND, "--nproc", 2, "--log-dir", logs, write(tmp_path, body))
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    expected = bytes(range(256)) * 2000 + b"\x00" * 300_000 + b"end without a line end"
    for rank in range(2):
        assert (logs / f"attempt_0/rank_{rank}.log").read_bytes() == expected
    shown = done.stdout.replace(MARK + b"\n", b"")
    assert len(shown) == 2 * (len(expected) + 1)
    assert shown.count(b"end without a line end\n") == 2


def test_log_keeps_every_state_of_a_progress_bar(tmp_path: Path) -> None:
    body = "import os\nos.write(1, b'10%\\r20%\\r')\nos.write(1, b'30%\\nafter\\r\\n')"
    logs = tmp_path / "logs"
    done = launch("--nproc", 2, "--log-dir", logs, write(tmp_path, body))
    assert (logs / "attempt_0/rank_1.log").read_bytes() == b"10%\r20%\r30%\nafter\r\n"
    assert done.stdout.count("10%") == 0


def test_child_of_a_rank_that_has_ended_may_still_print(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    body = f"""
import os, subprocess, sys, time
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)
if os.environ["RANK"] == "0":
    subprocess.Popen([{sys.executable!r}, "-c", '''
import os, time
while os.path.exists("/proc/%d" % os.getppid()) and os.getppid() == {{}}:
    time.sleep(0.01)
print("late", flush=True)
open("{flag}", "w").close()
'''.format(os.getpid())])
else:
    wait("{flag}")
"""
    done = launch("--nproc", 2, write(tmp_path, body))
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr


def test_full_disk_ends_the_job_with_that_reason(tmp_path: Path) -> None:
    body = "import os, time\nos.write(1, b'x\\n')\ntime.sleep(100)"
    command = (*COMMAND, "--nproc", 2, write(tmp_path, body))
    done = run("sh", "-c", 'exec "$@" > /dev/full', "sh", *command)
    assert done.returncode != 0
    assert "cannot print any more (No space left on device); all ranks" in done.stderr


@pytest.mark.parametrize("how", [("--nproc", 2), ("--rdzv-endpoint", "127.0.0.1:29987")])
def test_log_that_cannot_be_written_is_an_error_before_a_rank_starts(
    tmp_path: Path, how: tuple[object, ...]
) -> None:
    done = launch(*how, "--log-dir", "/proc/logs", write(tmp_path, "print()"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hccl-launch: error: --log-dir: expected a folder for files")
    assert done.stderr.count("\n") == 1
