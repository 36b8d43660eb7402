"""The user's standard input for a remote rank 0; a local one has the descriptor itself.

The agent requests a piece when rank 0 has read the previous one, so a rank that does not read stops
only its input. An empty piece is the end.
"""

import base64
import math
import os
import selectors
import time
from collections.abc import Callable

from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.machine.processes import is_in_background

_PIECE_BYTES = 64 << 10
_STDIN = 0
_CHECK_AGAIN_S = 0.5


class UserInput:
    """The user's end: reads when a piece is requested; a service of the loop."""

    def __init__(self, loop: JobLoop, send: Callable[[str], None]) -> None:
        """`send` takes a piece as text."""
        self._loop, self._send = loop, send
        self._is_wanted, self._watch_at_s = False, math.inf
        loop.add(self)

    def want(self) -> None:
        """Read a piece as soon as there is one."""
        if not self._is_wanted:
            self._is_wanted = True
            self._watch()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._watch_at_s

    def turn(self) -> None:
        """See `loop.Service`."""
        if time.monotonic() >= self._watch_at_s:
            self._watch_at_s = math.inf
            self._watch()

    def _watch(self) -> None:
        try:
            self._loop.watch(_STDIN, self._on_readable)
        except PermissionError:  # a file, which never blocks
            self._loop.post(self._read)

    def _on_readable(self) -> None:
        self._loop.selector.unregister(_STDIN)
        if is_in_background(os.getppid()):  # after Ctrl-Z: the shell reads the user's input
            self._watch_at_s = time.monotonic() + _CHECK_AGAIN_S
        else:
            self._read()

    def _read(self) -> None:
        self._is_wanted = False
        try:
            data = os.read(_STDIN, _PIECE_BYTES)
        except OSError:  # its terminal is gone
            data = b""
        self._send(base64.b64encode(data).decode())


class RankInput:
    """Rank 0's end: a pipe, which is its standard input."""

    def __init__(self, loop: JobLoop, want: Callable[[], None]) -> None:
        """`want` requests a piece."""
        self._loop, self._want = loop, want
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._left = b""
        self._is_watched = False

    def begin(self) -> None:
        """Request the first piece; rank 0 has the pipe."""
        os.close(self.reader)
        self._want()

    def take(self, text: str) -> None:
        """Accept a requested piece."""
        self._left = base64.b64decode(text)
        if not self._left:
            self.close()
        elif self._writer >= 0:
            self._write()

    def close(self) -> None:
        """End the input; rank 0 may have ended. Idempotent."""
        self._unwatch()
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def _write(self) -> None:
        self._unwatch()
        try:
            self._left = self._left[os.write(self._writer, self._left) :]
        except BlockingIOError:
            pass
        except OSError:  # rank 0 has closed it
            self.close()
            return
        if self._left:
            self._is_watched = True
            self._loop.selector.register(self._writer, selectors.EVENT_WRITE, self._write)
        else:
            self._want()

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.selector.unregister(self._writer)
