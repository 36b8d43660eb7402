"""Processes below this one: none of them may outlive the launcher.

Two processes of the launcher watch each other, the supervisor and the agent. Each adopts the
orphans below it, and the agent ends with the supervisor. So after `kill -9` of one the other ends
everything, even an agent that was frozen.
"""

import ctypes
import fcntl
import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAUSE_S = 0.01
_libc = ctypes.CDLL(None)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process a signal when `parent` ends, or end now if it has."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), number)


def thaw_at_end_of(descriptor: int) -> None:
    """Have the kernel continue this process, if it is frozen, when a pipe has data or ends.

    A frozen process sees neither other signals nor that its parent has ended.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGCONT)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def children(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that it adopted."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            yield from map(int, path.read_text().split())


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for child in children(pid):
        yield from tree(child)


def kill_descendants(limit_s: float, spared: Collection[int] = ()) -> bool:
    """Kill what is below this process, which adopts orphans; False: something is left.

    A process may fork while it is killed, so this repeats until there is none. Children that
    are spared stay, with what is below them.
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
    """Take the exit codes of children that ended, so that none stays as a zombie."""
    for child in set(children(os.getpid())) - set(spared):
        with suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def takes(pid: int, number: int) -> bool:
    """Whether a process handles, blocks or ignores a signal: any other ends by its default."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*(\w+)$", status, re.MULTILINE)
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def is_in_background(pid: int) -> bool:
    """Whether standard input is the terminal of a process which the shell does not let read it."""
    _, _, group, _, terminal, foreground = (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:6]
    )
    is_its_own = os.fstat(0).st_rdev in (int(terminal), os.makedev(5, 0))  # /dev/tty
    return is_its_own and foreground not in (group, "-1")
