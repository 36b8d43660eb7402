"""The launcher's standard output and error, written without waiting for their reader."""

import os
import select
import stat
import sys
import time
from contextlib import suppress

# Beyond this the launcher stops reading from ranks, which then wait as on any pipe.
_FULL_BYTES = 1 << 20
_WRITE_BYTES = 64 << 10
_USUAL_COLUMNS = 80  # of a terminal without a size, as on a serial line
_CLEAR_LINE = b"\r\x1b[K"


class Console:
    """A terminal, pipe or file that accepts lines as fast as its reader does.

    The lines of one `write` stay together: ranks write through one Console in turn.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._may_wait = _opened_again(descriptor)
        self._waiting = bytearray()
        self._status = b""
        self._prompted_by: object = None
        self.problem: OSError | None = None  # its reader closed it, or the disk is full

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    @property
    def is_terminal(self) -> bool:
        """Whether a line can replace another."""
        return os.isatty(self._descriptor) and os.environ.get("TERM") != "dumb"

    @property
    def is_pipe(self) -> bool:
        """Whether another program reads the output."""
        return stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)

    @property
    def is_lost(self) -> bool:
        """Whether writing is no longer possible."""
        return self.problem is not None

    @property
    def is_waiting(self) -> bool:
        """Whether `on_writable` has work."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether writes should pause until the reader has caught up."""
        return len(self._waiting) >= _FULL_BYTES

    def prompt(self, prefix: bytes, text: bytes, source: object) -> None:
        """Write text without a line end; whole lines of other sources begin below it.

        The prefix is omitted if the text continues a line of the same source.
        """
        if not self.is_lost:
            if self._prompted_by is not source:
                before = _CLEAR_LINE * bool(self._status) + b"\n" * self._must_break(source)
                text = before + prefix + text
            self._prompted_by = source
            self._waiting += text
            self.on_writable()

    def _must_break(self, source: object) -> bool:
        return self._prompted_by is not None and self._prompted_by is not source

    def write(self, lines: bytes, source: object = None) -> None:
        """Write whole lines, or keep them until the reader is ready; drop them if it is lost."""
        if not self.is_lost:
            if self._prompted_by is not None:
                lines = b"\n" * self._must_break(source) + lines
                self._prompted_by = None
            if self._status:
                lines = _CLEAR_LINE + lines + self._status
            self._waiting += lines
            self.on_writable()

    def show(self, status: str) -> None:
        """Keep a status below all lines of a terminal, replacing the previous one; empty: none."""
        if (self._waiting and status) or self._prompted_by is not None:
            return  # its reader stopped it, or a rank waits for its user
        columns = 0
        with suppress(OSError):  # the terminal is gone; the next write reports it
            columns = os.get_terminal_size(self._descriptor).columns
        # The last column stays free: a terminal would wrap the line.
        text = status[: (columns or _USUAL_COLUMNS) - 1].encode()
        before, self._status = self._status, b""
        if before or text:
            self.write(_CLEAR_LINE + text)
        self._status = text

    def on_writable(self) -> None:
        """Write as much as the reader accepts now."""
        try:
            most = select.PIPE_BUF if self._may_wait else _WRITE_BYTES
            while self._waiting and (not self._may_wait or self._is_ready(0.0)):
                count = os.write(self._descriptor, self._waiting[:most])
                del self._waiting[:count]
        except BlockingIOError:
            pass
        except OSError as error:
            self.problem = error
            self._waiting.clear()

    def drop(self) -> int:
        """Drop unwritten output, and return its number of bytes."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while self._waiting and (left_s := deadline_s - time.monotonic()) > 0:
            self._is_ready(left_s)
            self.on_writable()

    def _is_ready(self, timeout_s: float) -> bool:
        """Wait until a write of PIPE_BUF bytes does not block, or fails."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))


def open_screens() -> tuple[Console, Console]:
    """Return the screens of standard output and error, the same one if both are one file."""
    sys.stdout.flush()
    sys.stderr.flush()
    out = Console(1)
    return out, out if os.path.sameopenfile(1, 2) else Console(2)


def _opened_again(descriptor: int) -> tuple[int, bool]:
    """Return a descriptor for the same terminal or pipe that does not block, and whether one does.

    O_NONBLOCK on the descriptor would also change the shell's, which shares it. A file never
    blocks, and reopened it would be written from its beginning. A socket cannot be reopened, nor
    another user's pipe or terminal, as after `su`.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", flags), False
    return descriptor, not stat.S_ISREG(mode)
