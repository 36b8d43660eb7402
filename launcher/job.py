"""The process that the user sees: forks the agent of this machine, watches it, ends it.

This process forks the agent before it has any thread. The agent calls setsid(), so Ctrl-C reaches
this process alone, which stops the agent; the agent stops its ranks.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hccl_py.launcher import agent
from hccl_py.launcher.agent import Program, Report
from hccl_py.launcher.failure import first_failure, render

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# On top of the time that elastic gives a rank between SIGTERM and SIGKILL.
_AGENT_EXTRA_S = 5.0
# How long a stopped agent without ranks may take to end.
_IDLE_S = 0.5


class LaunchError(Exception):
    """The job could not be started or kept up; the message says why, in one line."""


def run(program: Program) -> int:
    """Run a job to its end and report its failure.

    Return 0, the exit code of the first rank that failed, or 128 + the signal that ended the job.
    """
    # A signal is a byte on this pipe: waiting for the agent and for signals is one wait.
    signals, signal_writer = os.pipe()
    for end in (signals, signal_writer):
        os.set_blocking(end, False)
    pid, channel = _fork(program)
    signal.set_wakeup_fd(signal_writer, warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    supervisor = _Supervisor(program, pid, channel)
    try:
        while supervisor.step(signals):
            pass
    finally:
        supervisor.kill()
        os.waitpid(pid, 0)
    return supervisor.conclude()


def _fork(program: Program) -> tuple[int, Connection]:
    ours, theirs = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        agent.run(program, theirs)
    finally:
        # Nothing of the launcher, which this process is a copy of, may run after this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Supervisor:
    """Watches the agent from first to last."""

    def __init__(self, program: Program, pid: int, channel: Connection) -> None:
        self._program = program
        self._pid = pid
        self._channel = channel
        self._report: Report | None = None
        self._kill_at_s: float | None = None
        self._stop_signal = 0

    def step(self, signals: int) -> bool:
        """Handle the next signal or message; return False once the agent has ended."""
        left_s = None
        if self._kill_at_s is not None:
            left_s = min(_IDLE_S, max(0.0, self._kill_at_s - time.monotonic()))
        events = wait([self._channel, signals], left_s)
        if signals in events:
            self._on_signal(os.read(signals, 64)[-1])
        if self._channel in events:
            try:
                self._report = self._channel.recv()
            except EOFError:
                return False
        if self._kill_at_s is not None:
            # An agent without ranks may wait for other nodes in C++, where it sees no signal.
            idle = not events and not _children(self._pid)
            if idle or time.monotonic() >= self._kill_at_s:
                self.kill()
        return True

    def _on_signal(self, number: int) -> None:
        if self._stop_signal:
            # The second Ctrl-C: no more time for ranks to end by themselves.
            self.kill()
            return
        self._stop_signal = number
        os.kill(self._pid, signal.SIGTERM)
        grace_s = self._program.config.shutdown_timeout or 0
        self._kill_at_s = time.monotonic() + grace_s + _AGENT_EXTRA_S

    def kill(self) -> None:
        """End the agent and what it started at once; it is not reaped yet, so the pid is its."""
        for rank_pid in _children(self._pid):
            with suppress(ProcessLookupError):
                os.killpg(rank_pid, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)

    def conclude(self) -> int:
        """Print how the job ended and return the exit code."""
        report = self._report
        if report is not None and report.failures:
            text = render(report.failures, self._program.world_size)
            print(text, file=sys.stderr, flush=True)
            return first_failure(report.failures).shell_code
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            print(f"hccl-launch: stopped by {name}; all ranks were ended", file=sys.stderr)
            return 128 + self._stop_signal
        if report is None:
            raise LaunchError("the agent was killed; its ranks ended with it")
        if report.problem:
            raise LaunchError(report.problem)
        return 0


def _children(pid: int) -> list[int]:
    """Return the processes that a process started: an agent's ranks, each leading a group."""
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
    return []
