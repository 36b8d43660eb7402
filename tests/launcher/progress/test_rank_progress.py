"""When a rank counts as idle, with real processes; and where it is then."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.launcher.progress.rank_progress import (
    CONNECTED,
    CONNECTING,
    STARTED,
    STOPPED,
    RankWatch,
    stack_of,
)

COMPUTE = "while True: pass"
CHILD_COMPUTES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"
SLEEP = """
import threading, time
def waits_here():
    threading.Thread(target=time.sleep, args=(100,), name="hccl-control", daemon=True).start()
    print(flush=True)
    time.sleep(100)
waits_here()
"""
RUN = "from hccl_py.launcher.worker import main; main()"
LOOK_S, LIMIT_S = 0.2, HANG_S


@contextmanager
def rank(code: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_rank_that_computes_itself_or_by_a_child_is_not_idle(tmp_path: Path) -> None:
    with rank(COMPUTE) as itself, rank(CHILD_COMPUTES) as by_child:
        began_s = time.monotonic()
        pids = itself.pid, by_child.pid
        watches = [RankWatch(0, pid, tmp_path / "none", began_s) for pid in pids]
        while time.monotonic() < began_s + 6 * LOOK_S:
            time.sleep(LOOK_S)
            idle_s = [watch.sample(0, time.monotonic()).idle_s for watch in watches]
    assert max(idle_s) < 4 * LOOK_S, idle_s


def test_rank_that_sleeps_is_idle_until_it_prints(tmp_path: Path) -> None:
    with rank(SLEEP) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began_s = time.monotonic()
        watch = RankWatch(0, process.pid, tmp_path / "none", began_s)
        while watch.sample(0, time.monotonic()).idle_s < 3 * LOOK_S:
            assert time.monotonic() < began_s + LIMIT_S
            time.sleep(LOOK_S)
        assert watch.sample(1, time.monotonic()).idle_s == 0.0


def test_rank_that_a_signal_holds_is_stopped_until_another_continues_it(tmp_path: Path) -> None:
    with rank(SLEEP) as process:
        watch = RankWatch(0, process.pid, tmp_path / "none", time.monotonic())
        for number, phase in ((signal.SIGSTOP, STOPPED), (signal.SIGCONT, STARTED)):
            process.send_signal(number)
            wait_until(lambda phase=phase: watch.sample(0, time.monotonic()).phase == phase, phase)


def test_file_of_a_rank_is_read_only_whole(tmp_path: Path) -> None:
    def write(spoilt: int = 0, **told: object) -> None:
        body = json.dumps(told).encode()
        left_over = b"what an earlier, longer line left"
        file.write_bytes(b"%08x %s\n%s" % (zlib.crc32(body) + spoilt, body, left_over))

    file = tmp_path / "progress"
    watch = RankWatch(3, os.getpid(), file, 100.0)
    assert watch.sample(0, 100.0).phase == STARTED
    write(connecting=True)
    assert watch.sample(0, 100.0).phase == CONNECTING
    write(connecting=False, steps=5, bytes=70, changed_s=1.0, call="barrier", waiting_for=[2])
    seen = watch.sample(0, 101.0)
    assert (seen.steps, seen.num_bytes, seen.call, seen.waiting_for) == (5, 70, "barrier", (2,))
    assert (seen.phase, seen.idle_s) == (CONNECTED, 0.0)
    write(spoilt=1, steps=6)
    assert watch.sample(0, 102.0).steps == 5


@pytest.mark.skipif(
    not shutil.which("py-spy", path=str(Path(sys.executable).parent))
    and not shutil.which("py-spy"),
    reason="py-spy is not installed",
)
def test_stack_begins_where_the_rank_is_and_leaves_out_the_launcher_and_threads_of_hccl(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SLEEP)
    with rank(f"import sys; sys.argv[1:] = [{str(tmp_path / 'script.py')!r}]\n{RUN}") as process:
        assert process.stdout is not None
        process.stdout.readline()
        first, line, *rest = stack_of(process.pid).splitlines()
    assert "MainThread" in first
    assert "waits_here (" in line
    assert "script.py:" in line
    assert not [line for line in rest if re.search("Thread|runpy|worker.py", line)]
