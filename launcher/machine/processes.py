"""Descendants of this process: none of them may outlive the launcher.

The launcher's supervisor and agent watch each other. Each adopts its orphaned descendants, and the
agent ends with the supervisor. So after `kill -9` of one the other ends everything, even a frozen
agent.
"""

import ctypes
import fcntl
import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAUSE_S, _FREEZE_S = 0.01, 1.0
_libc = ctypes.CDLL(None)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process a signal when `parent` ends, or end now if it has."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it had ended before
        os.kill(os.getpid(), number)


def thaw_at_end_of(descriptor: int) -> None:
    """Have the kernel continue this process, if frozen, when a pipe has data or ends.

    A frozen process handles neither other signals nor the end of its parent.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGCONT)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def children(pid: int) -> Iterator[int]:
    """Yield the children of a process, adopted ones included."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            yield from map(int, path.read_text().split())


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in children(pid):
        yield from tree(child)


def freeze(found: Sequence[int]) -> None:
    """Stop children of this process and their descendants; return once the children are stopped."""
    _signal_trees(found, signal.SIGSTOP)
    end_s = time.monotonic() + _FREEZE_S
    while not all(map(_is_stopped, found)) and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)


def thaw(found: Sequence[int]) -> None:
    """Continue what `freeze` stopped."""
    _signal_trees(found, signal.SIGCONT)


def _signal_trees(roots: Sequence[int], number: signal.Signals) -> None:
    for pid in [pid for root in roots for pid in tree(root)]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _is_stopped(child: int) -> bool:
    with suppress(ChildProcessError):
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child, options) is not None
    return True


def kill_descendants(limit_s: float, spared: Collection[int] = ()) -> bool:
    """Kill the descendants of this process, which adopts orphans; False: some are left.

    A process may fork while it is killed, so this repeats until none is left. Spared children stay,
    with their descendants.
    """
    end_s = time.monotonic() + limit_s
    while True:
        found = [pid for child in set(children(os.getpid())) - set(spared) for pid in tree(child)]
        if not found:
            return True
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(spared)
        if time.monotonic() > end_s:
            return False
        time.sleep(_PAUSE_S)


def reap(spared: Collection[int] = ()) -> None:
    """Collect the exit codes of ended children, so that none stays a zombie."""
    for child in set(children(os.getpid())) - set(spared):
        with suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def takes(pid: int, number: int) -> bool:
    """Return whether a process handles, blocks or ignores a signal, instead of ending by it."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*(\w+)$", status, re.MULTILINE)
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def is_in_background(pid: int) -> bool:
    """Return whether stdin is a process's terminal, but the process is in the background."""
    _, _, group, _, terminal, foreground = (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:6]
    )
    is_its_own = os.fstat(0).st_rdev in (int(terminal), os.makedev(5, 0))  # /dev/tty
    return is_its_own and foreground not in (group, "-1")
