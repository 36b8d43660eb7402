"""The process that the user starts: forks the worker of the command, forwards signals, cleans up.

This process forks before it has any thread. The child leaves the session, so Ctrl-C reaches only
this process, which asks the child to stop. A second Ctrl-C kills. At the end this process has no
descendants, however the child ended.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from select import select

from hccl_py.launcher.exit_codes import AGENT_KILLED, UsageError
from hccl_py.launcher.machine.processes import (
    adopt_orphans,
    end_with_parent,
    kill_descendants,
    thaw_at_end_of,
)
from hccl_py.launcher.machine.scratch import make, remove
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.signals import RESUME, SUSPEND, WARNINGS

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A program such as `timeout` sends its signal twice, to the process and to its group.
_SAME_S = 0.5
_IMPATIENT = (signal.SIGINT, signal.SIGQUIT)
_KILL_S = 3.0
# Time for the child's work at the end, besides the ranks' time.
_EXTRA_S = 5.0


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a job; under nohup, without SIGHUP."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if number != signal.SIGHUP or not ignored]


def run(body: Callable[[], int], stop_s: float, folder: Path) -> int:
    """Run `body` in a child with its own session, and return its exit code.

    Signals are forwarded to the child, whose ranks have `stop_s` after the first one. No descendant
    of the child is left when this returns. The child makes the folder, and removes it if this
    process is killed.
    """
    adopt_orphans()
    # A signal is a byte on this pipe: waiting for the child and for signals is one wait.
    signals, signal_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Before the child has left the session, a signal reaches both processes, so both block it.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    # SIGCHLD reports a frozen child: its byte on the pipe thaws the child. If a shell ignored that
    # signal, the kernel would keep no exit code.
    handled = (*stop_signals(), *WARNINGS, signal.SIGCHLD)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # a shell has job control
        handled += (signal.SIGTSTP,)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    pid = _fork(body, folder, (signals, signal_writer))
    signal.set_wakeup_fd(signal_writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    ended = os.pidfd_open(pid)
    try:
        stopped_by = _watch(pid, ended, signals, stop_s + _EXTRA_S)
    finally:
        # Not reaped yet, so the pid is still the child's.
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kill_descendants(_KILL_S)
        remove(folder)
        os.close(ended)
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(signals)
        os.close(signal_writer)
    if stopped_by and code <= 0:  # the child was killed before it could report that
        lost = "; all ranks were killed, and their last lines may be missing"
        say(f"stopped by {signal.Signals(stopped_by).name}" + lost * (code != -stopped_by))
        return 128 + stopped_by
    if code < 0:
        name = signal.Signals(-code).name
        say(
            f"error: its agent was killed by {name}; its ranks ended with it, "
            "and their last lines may be missing"
        )
        return AGENT_KILLED
    return code


def _fork(body: Callable[[], int], folder: Path, signals: tuple[int, int]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    gc.freeze()  # a garbage collection in the child would copy every page of this process
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        # Until the body handles signals: KeyboardInterrupt in an import would print a traceback.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in stop_signals():
            signal.signal(number, partial(_end_child, parent, folder))
        signal.signal(SUSPEND, lambda *_: os.kill(parent, signal.SIGTSTP))  # no rank runs yet
        signal.signal(RESUME, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        adopt_orphans()
        os.close(signals[1])
        thaw_at_end_of(signals[0])
        end_with_parent(signal.SIGTERM, parent)
        make(folder)
        code = body()
    except UsageError as error:
        say(f"error: {error}")
        code = error.exit_code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if os.getppid() != parent:  # no other process cleans up
            kill_descendants(_KILL_S)
            remove(folder)
        # This process is a copy: its parent's exit handlers must not run here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_child(parent: int, folder: Path, number: int, _frame: object) -> None:
    if os.getppid() != parent:
        remove(folder)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _watch(pid: int, ended: int, signals: int, stop_s: float) -> int:
    """Wait for the end of the child; return the signal that stopped it, 0 without one."""
    stopped_by, stopped_s, end_s, suspends = 0, 0.0, 0.0, False
    while True:
        left_s = max(0.0, end_s - time.monotonic()) if stopped_by else None
        ready, _, _ = select([ended, signals], [], [], left_s)
        if ended in ready:
            return stopped_by
        if signals not in ready:
            return stopped_by  # time is up
        for number in os.read(signals, 64):
            if number in WARNINGS:
                os.kill(pid, number)
            elif number == signal.SIGTSTP:
                if suspends:  # the agent has stopped the ranks, or the user repeats Ctrl-Z
                    _suspend_here()
                os.kill(pid, RESUME if suspends else SUSPEND)
                suspends = not suspends
            elif number != signal.SIGCHLD and not stopped_by:
                stopped_by, stopped_s = number, time.monotonic()
                end_s = stopped_s + stop_s
                os.kill(pid, number)
            elif number in _IMPATIENT and time.monotonic() - stopped_s > _SAME_S:
                return stopped_by


def _suspend_here() -> None:
    """Stop until the shell continues this process; the kernel skips it where no shell would."""
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
