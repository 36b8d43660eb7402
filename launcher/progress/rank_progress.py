"""How far one rank is, as the agent on its host sees it, and where it is, by py-spy.

A rank that uses hccl writes a file (`hccl_py/progress_file.py`). Any rank shows progress by
its lines and its CPU time, too.
"""

import json
import os
import socket
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.launcher.processes import tree

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY_SHARE = 0.1
"""A rank that uses, or wants, this much of a core computes; the heartbeats of a call need less."""


class RankProgress(NamedTuple):
    """One sample of a rank.

    Attributes:
        steps, collectives, num_bytes: done, and sent, since the rank started.
        idle_s: how long there has been no progress of any kind.
        call: without progress, where the rank waits; empty: it waits in none.
        waiting_for: ranks without which this call cannot go on, as far as they are known.
    """

    rank: int
    host: str
    pid: int
    steps: int
    collectives: int
    num_bytes: int
    idle_s: float
    call: str
    waiting_for: Sequence[int]


class RankWatch:
    """Samples one rank, again and again."""

    def __init__(self, rank: int, pid: int, file: Path, now_s: float) -> None:
        """Begin with a rank that has just started; `now_s` is of `time.monotonic`."""
        self._rank, self._pid, self._file = rank, pid, file
        self._host = socket.gethostname()
        self._report: dict[str, Any] = {}
        self._num_lines = 0
        self._cpu: tuple[float, float] | None = None  # when, and how much the rank had used
        self._active_s = now_s

    def sample(self, num_lines: int, now_s: float) -> RankProgress:
        """Sample a rank that has printed `num_lines` so far."""
        report = self.last_report()
        has_moved = report.get("changed_s") != self._report.get("changed_s")
        # In a call that is stuck, hccl itself prints.
        has_moved = has_moved or (num_lines != self._num_lines and not report.get("call"))
        self._report, self._num_lines = report, num_lines
        if has_moved or self._computes(now_s):
            self._active_s = now_s
        if has_moved:
            self._cpu = None  # spare the next sample, perhaps
        return RankProgress(
            rank=self._rank,
            host=self._host,
            pid=self._pid,
            steps=report.get("steps", 0),
            collectives=report.get("collectives", 0),
            num_bytes=report.get("bytes", 0),
            idle_s=now_s - self._active_s,
            call=report.get("call", ""),
            waiting_for=tuple(report.get("waiting_for", ())),
        )

    def last_report(self) -> dict[str, Any]:
        """Return what the rank wrote last, as far as it is known; empty: it uses no hccl."""
        return _read(self._file) or self._report

    def _computes(self, now_s: float) -> bool:
        before, self._cpu = self._cpu, (now_s, _cpu_s(self._pid))
        if before is None:
            return False
        since_s, used_s = before
        return self._cpu[1] - used_s >= _BUSY_SHARE * (now_s - since_s)


def _read(file: Path) -> dict[str, Any] | None:
    """Return what the rank wrote; None: nothing, or it is writing just now."""
    with suppress(OSError, ValueError):
        checksum, _, body = file.read_bytes().partition(b"\n")[0].partition(b" ")
        if int(checksum, 16) == zlib.crc32(body):
            found: dict[str, Any] = json.loads(body)
            return found
    return None


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all below it: of those that have ended, too.

    The time that a main thread waited for a free core is in it: the rank wants to compute.
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


def stack_of(pid: int) -> str:
    """Return the stack of a Python process, or why there is none; empty: there is no py-spy."""
    import shutil  # they cost every agent
    import subprocess

    # Beside this Python first: PATH need not lead to the virtual environment.
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
    """Leave out the header, the threads of hccl, and what is beyond the limit."""
    threads = dump.replace("\nThread ", _MARK + "Thread ").split(_MARK)[1:]
    lines = [
        line
        for thread in threads
        if '"hccl-' not in thread.partition("\n")[0]
        for line in thread.strip().splitlines()
    ]
    left_out = len(lines) - _MAX_LINES
    more = [f"... {left_out} more lines"] if left_out > 0 else []
    return "\n".join([*lines[:_MAX_LINES], *more])
