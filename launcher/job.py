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
    try:
        stop_signal = _watch(pid, agent_end, signals, program.config.shutdown_timeout or 0)
    finally:
        _kill(pid)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if stop_signal and code <= 0:
        name = signal.Signals(stop_signal).name
        print(f"hccl-launch: stopped by {name}; all ranks were ended", file=sys.stderr)
        return 128 + stop_signal
    if code < 0:
        why = "the agent was killed; its ranks ended with it"
        print(f"hccl-launch: error: {why}", file=sys.stderr)
        return 2
    return code


def _fork(program: Program) -> tuple[int, int]:
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


def _watch(pid: int, agent_end: int, signals: int, grace_s: float) -> int:
    """Wait for the end of the agent, which a signal stops; return that signal, 0 without one."""
    stop_signal, kill_at_s = 0, 0.0
    left_s: float | None = None
    while True:
        if stop_signal:
            left_s = min(_IDLE_S, max(0.0, kill_at_s - time.monotonic()))
        events, _, _ = select([agent_end, signals], [], [], left_s)
        if agent_end in events:
            return stop_signal
        if signals in events:
            number = os.read(signals, 64)[-1]
            if stop_signal:
                # The second Ctrl-C: no more time for ranks to end by themselves.
                _kill(pid)
            else:
                stop_signal = number
                os.kill(pid, signal.SIGTERM)
                kill_at_s = time.monotonic() + grace_s + _AGENT_EXTRA_S
        # An agent without ranks may wait for other nodes in C++, where it sees no signal.
        elif left_s is not None and (left_s < _IDLE_S or not _children(pid)):
            _kill(pid)


def _kill(pid: int) -> None:
    """End the agent and what it started at once; it is not reaped yet, so the pid is its."""
    for rank_pid in _children(pid):
        with suppress(ProcessLookupError):
            os.killpg(rank_pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
    return []
