"""Runs the process that emulates the network: starts it before the ranks, prints its report."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hccl_py.launcher.exit_codes import AGENT_KILLED
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.own_lines import say

_REPORT_S = 120.0  # its last simulation begins within 30 s
_END_S = 5.0
_SILENCE_S = 8.0
"""Less than the 10 s that a rank waits for an answer, because the launcher's error says more."""
_START_S = 20.0  # allowed beyond _SILENCE_S while the process starts
_TURN_S = 1.0


@contextmanager
def emulated_network(
    path: Path, ranks_per_node: int, name: str, loop: JobLoop, server: JobServer
) -> Iterator[None]:
    """Run the network of a job, whose ranks connect to it by `name`, and print its report.

    The job ends, without a restart, if the network's process ends or stops.
    """
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(write_end, "wb"):
        listener.bind(f"\0{name}")
        listener.listen(1 << 10)
        handed = (listener.fileno(), write_end)
        words = (str(path), *map(str, handed), str(ranks_per_node))
        process = subprocess.Popen(
            [sys.executable, "-m", "hccl_py.lab.emulation.server", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=handed,
            cwd="/",  # a checkout in the working directory would hide the installed package
            env={key: it for key, it in os.environ.items() if not key.startswith("HCCL_SECRET")},
            text=True,
        )
    loop.spared.add(process.pid)
    with process, open(read_end, "rb"):
        watch = _Watch(process, read_end, loop, server)
        try:
            yield
            if process.returncode is None:  # _Watch reaps it if it ends early
                _print_report(process)
        finally:
            loop.remove(watch)
            process.kill()


class _Watch:
    """Reads the pipe from the network's process; a service of the loop, and its `why_killed`."""

    def __init__(
        self, process: subprocess.Popen[str], pipe: int, loop: JobLoop, server: JobServer
    ) -> None:
        self._process, self._pipe, self._loop, self._server = process, pipe, loop, server
        self._turned_s = time.monotonic()
        self._alive_s = self._turned_s + _START_S
        self._unread = ""
        self._steps: dict[int, str] = {}  # by killed rank, the step of its fault
        os.set_blocking(pipe, False)
        loop.watch(pipe, self._read)
        loop.why_killed = self.why_killed
        loop.add(self)

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._turned_s + _TURN_S

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        if now_s > self._turned_s + _SILENCE_S / 2:  # this process was stopped itself
            self._alive_s = max(self._alive_s, now_s)
        self._turned_s = now_s
        if now_s > self._alive_s + _SILENCE_S and self._process.returncode is None:
            self._end_job(f"did not answer for {_SILENCE_S:.0f} s (was it stopped?)")

    def why_killed(self, rank: int) -> str:
        """Return which fault of the file killed a rank; empty: none."""
        self._read()
        step = self._steps.pop(rank, None)
        return f"as the file of --emulate says: at step {step}: kill rank {rank}" if step else ""

    def _read(self) -> None:
        try:
            text = os.read(self._pipe, 1 << 16).decode()
        except BlockingIOError:
            return
        if not text and self._process.returncode is None:
            self._end_job("died (exit code {code})")
        self._alive_s = time.monotonic()
        *lines, self._unread = (self._unread + text).split("\n")
        for line in lines:
            word, *rest = line.split()
            if word == "kill":
                self._steps[int(rest[0])] = rest[1]

    def _end_job(self, what: str) -> None:
        self._loop.selector.unregister(self._pipe)
        self._process.kill()
        code = self._process.wait(_END_S)
        why = f"the process that emulates the network {what.format(code=code)}"
        self._server.streams.say(f"hccl-launch: {why}: the job ends")
        self._server.coordinator.stop(f"error: {why}", AGENT_KILLED, time.monotonic())


def _print_report(process: subprocess.Popen[str]) -> None:
    try:
        report, _ = process.communicate(timeout=_REPORT_S)
    except subprocess.TimeoutExpired:
        say(f"the emulated network gave no report in {_REPORT_S:.0f} s")
        return
    for line in report.splitlines():
        say(line)
    if process.returncode:
        say(f"the process that emulated the network failed with exit code {process.returncode}")
