"""One rank's progress, sampled by the agent on its host, and its stack, by py-spy.

A rank that uses hccl writes a file (`hccl_py/progress_file.py`). Lines and CPU time show the
progress of any rank.
"""

import json
import os
import re
import socket
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.launcher.machine.processes import tree
from hccl_py.transport.network.system_calls import is_stopped

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY_SHARE = 0.1
"""A rank that uses or wants this share of a core computes; heartbeats in a call need less."""


STARTED = "started"  # no communicator yet: Python imports, or the program uses none
CONNECTING, CONNECTED, STOPPED = "connecting", "connected", "stopped"


class RankProgress(NamedTuple):
    """One sample of a rank.

    Attributes:
        phase: what the rank does.
        steps, collectives, num_bytes: done, and sent, since the rank started.
        idle_s: how long there has been no progress of any kind.
        call: the call without progress in which the rank waits; empty: none.
        waiting_for: ranks that this call waits for, as far as they are known.
    """

    rank: int
    host: str
    pid: int
    phase: str
    steps: int
    collectives: int
    num_bytes: int
    idle_s: float
    call: str
    waiting_for: Sequence[int]


class RankWatch:
    """Samples one rank repeatedly."""

    def __init__(self, rank: int, pid: int, file: Path, now_s: float) -> None:
        """Start with a new rank; `now_s` is by `time.monotonic`."""
        self._rank, self._pid, self._file = rank, pid, file
        self._host = socket.gethostname()
        self._report: dict[str, Any] = {}
        self._num_lines = 0
        self._cpu: tuple[float, float] | None = None  # time, and the rank's CPU time then
        self._active_s = now_s

    def sample(self, num_lines: int, now_s: float) -> RankProgress:
        """Sample a rank that has printed `num_lines` so far."""
        report = self.last_report()
        has_moved = report.get("changed_s") != self._report.get("changed_s")
        # hccl itself prints in a stalled call.
        has_moved = has_moved or (num_lines != self._num_lines and not report.get("call"))
        self._report, self._num_lines = report, num_lines
        if has_moved or self._computes(now_s):
            self._active_s = now_s
        if has_moved:
            self._cpu = None  # not comparable with the next sample
        return RankProgress(
            rank=self._rank,
            host=self._host,
            pid=self._pid,
            phase=STOPPED if is_stopped(self._pid) else _phase(report),
            steps=report.get("steps", 0),
            collectives=report.get("collectives", 0),
            num_bytes=report.get("bytes", 0),
            idle_s=now_s - self._active_s,
            call=report.get("call", ""),
            waiting_for=tuple(report.get("waiting_for", ())),
        )

    def last_report(self) -> dict[str, Any]:
        """Return the rank's last report, as far as known; empty: it does not use hccl."""
        return _read(self._file) or self._report

    def _computes(self, now_s: float) -> bool:
        before, self._cpu = self._cpu, (now_s, _cpu_s(self._pid))
        if before is None:
            return False
        since_s, used_s = before
        return self._cpu[1] - used_s >= _BUSY_SHARE * (now_s - since_s)


def _read(file: Path) -> dict[str, Any] | None:
    """Return the rank's report; None: none yet, or it is being written."""
    with suppress(OSError, ValueError):
        checksum, _, body = file.read_bytes().partition(b"\n")[0].partition(b" ")
        if int(checksum, 16) == zlib.crc32(body):
            found: dict[str, Any] = json.loads(body)
            return found
    return None


def _phase(report: dict[str, Any]) -> str:
    if not report:
        return STARTED
    return CONNECTING if report["connecting"] else CONNECTED


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all its descendants, ended ones included.

    It includes the main thread's wait for a free core, as the rank wants to compute.
    """
    ticks = wait_ns = 0
    for each in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            wait_ns += int(Path(f"/proc/{each}/schedstat").read_text().split()[1])
    return ticks / _TICKS_PER_S + wait_ns / 1e9


_TIMEOUT_S = 20.0
_MAX_LINES = 30
_MARK = "\0"
_RUNS_SCRIPT = re.compile(r"\((<frozen runpy>|(.*/)?runpy\.py|(.*/)?launcher/worker\.py)(:\d+)?\)$")


def stack_of(pid: int) -> str:
    """Return the stack of a Python process, or why there is none; empty: there is no py-spy."""
    import shutil  # slow to import for every agent
    import subprocess

    # First next to this Python: PATH may lack the virtual environment.
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which(
        "py-spy"
    )
    if program is None:
        return ""
    command = [program, "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    if done.returncode:
        return f"py-spy failed: {(done.stderr.strip() or 'it said nothing').splitlines()[0]}"
    return _shortened(done.stdout)


def _shortened(dump: str) -> str:
    """Remove the header, hccl's threads, the frames that run a script, and lines over the limit."""
    threads = dump.replace("\nThread ", _MARK + "Thread ").split(_MARK)[1:]
    lines = [
        line
        for thread in threads
        if '"hccl-' not in thread.partition("\n")[0]
        for line in thread.strip().splitlines()
        if not _RUNS_SCRIPT.search(line)
    ]
    left_out = len(lines) - _MAX_LINES
    more = [f"... {left_out} more lines"] if left_out > 0 else []
    return "\n".join([*lines[:_MAX_LINES], *more])
