"""The process that the user sees: forks the agent of this machine, watches it, ends it.

This process forks the agent before it has any thread. The agent calls setsid(), so Ctrl-C reaches
this process alone, which stops the agent; the agent stops its ranks.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from select import select

from hccl_py.launcher import agent
from hccl_py.launcher.agent import Program

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# On top of the time that elastic gives a rank between SIGTERM and SIGKILL.
_AGENT_EXTRA_S = 5.0
# How long a stopped agent without ranks may take to end.
_IDLE_S = 0.5


def run(program: Program) -> int:
    """Run a job to its end.

    Return 0, the exit code of the first rank that failed, 2 if the job could not be started or kept
    up, or 128 + the signal that ended the job.
    """
    # A signal is a byte on this pipe: waiting for the agent and for signals is one wait.
    signals, signal_writer = os.pipe()
    for end in (signals, signal_writer):
        os.set_blocking(end, False)
    pid, agent_end = _fork(program)
    signal.set_wakeup_fd(signal_writer, warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    supervisor = _Supervisor(pid, program.config.shutdown_timeout or 0)
    try:
        while supervisor.step(agent_end, signals):
            pass
    finally:
        supervisor.kill()
        _, status = os.waitpid(pid, 0)
    return supervisor.conclude(os.waitstatus_to_exitcode(status))


def _fork(program: Program) -> tuple[int, int]:
    """Fork the agent; return its pid and a pipe that is readable once it has ended."""
    agent_end, held_by_agent = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(held_by_agent)
        return pid, agent_end
    code = 1
    try:
        code = agent.run(program)
    finally:
        # Nothing of the launcher, which this process is a copy of, may run after this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Supervisor:
    """Watches the agent from first to last."""

    def __init__(self, pid: int, grace_s: float) -> None:
        self._pid = pid
        self._grace_s = grace_s
        self._kill_at_s: float | None = None
        self._stop_signal = 0

    def step(self, agent_end: int, signals: int) -> bool:
        """Handle the next signal; return False once the agent has ended."""
        left_s = None
        if self._kill_at_s is not None:
            left_s = min(_IDLE_S, max(0.0, self._kill_at_s - time.monotonic()))
        events, _, _ = select([agent_end, signals], [], [], left_s)
        if agent_end in events:
            return False
        if signals in events:
            self._on_signal(os.read(signals, 64)[-1])
        # An agent without ranks may wait for other nodes in C++, where it sees no signal.
        elif left_s is not None and (left_s < _IDLE_S or not _children(self._pid)):
            self.kill()
        return True

    def _on_signal(self, number: int) -> None:
        if self._stop_signal:
            # The second Ctrl-C: no more time for ranks to end by themselves.
            self.kill()
            return
        self._stop_signal = number
        os.kill(self._pid, signal.SIGTERM)
        self._kill_at_s = time.monotonic() + self._grace_s + _AGENT_EXTRA_S

    def kill(self) -> None:
        """End the agent and what it started at once; it is not reaped yet, so the pid is its."""
        for rank_pid in _children(self._pid):
            with suppress(ProcessLookupError):
                os.killpg(rank_pid, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)

    def conclude(self, code: int) -> int:
        """Return the exit code of the job, whose agent ended with `code`."""
        if code > 0:
            return code
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            print(f"hccl-launch: stopped by {name}; all ranks were ended", file=sys.stderr)
            return 128 + self._stop_signal
        if code < 0:
            why = "the agent was killed; its ranks ended with it"
            print(f"hccl-launch: error: {why}", file=sys.stderr)
            return 2
        return 0


def _children(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
    return []
