"""Whole lines from a rank's pipe.

A progress bar, as tqdm's, writes states that end in a carriage return and a line end at last. On a
terminal each state replaces the one before. In lines of many ranks it becomes a line a second and
the last state, so a bar is seen to move and does not bury the rest. What is no text is no bar.
"""

import array
import fcntl
import os
import re
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

MAX_LINE_BYTES = 64 << 10
MARK = b" [hccl-launch: the line goes on]"
_STATE_EVERY_S = 1.0
_READ_BYTES = 64 << 10
# Bars use colours (ESC), tabs and backspaces.
_NO_TEXT = re.compile(rb"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


class LineReader:
    """Hands on what a pipe brings, in whole lines with their ends, some at a time.

    Bytes stay as they are, valid UTF-8 or not. A line of more than `max_line_bytes` comes in pieces
    that end in MARK, so a rank that never ends its line takes no more memory.
    """

    def __init__(
        self,
        descriptor: int,
        take: Callable[[Sequence[bytes]], None],
        keep: Callable[[bytes], None] = lambda _: None,
        part: Callable[[bytes], bytes] = lambda data: data,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        """Take over a descriptor.

        Args:
            descriptor: of the pipe.
            take: gets the lines.
            keep: gets every byte, and b"" at the end.
            part: returns the part of the bytes that came which belongs to lines.
            max_line_bytes: longest line that is not cut.
        """
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take, self._keep, self._part = take, keep, part
        self._max_bytes = max_line_bytes
        self._begun = b""  # the line that has no end yet; of a progress bar, its newest state
        self._shown = b""  # the state of this bar that was last handed on
        self._next_state_s = 0.0
        self.read_s = 0.0  # when something came last
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    @property
    def unfinished(self) -> bytes:
        """What there is of a line without an end."""
        return _newest_state(self._begun)

    @property
    def prompt(self) -> bytes:
        """The same, unless it is a progress bar."""
        return b"" if _is_bar(self._begun) else self._begun

    def take_unfinished(self) -> bytes:
        """Return what there is of a line without an end, which has been shown then."""
        text, self._begun = self._begun, b""
        return text

    def on_readable(self) -> int:
        """Read once and hand on the lines that are whole; close at the end of the pipe.

        Returns:
            The number of bytes that came; 0: there is nothing now, or never again.
        """
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self.read_s = time.monotonic()
            self._hand_on(self._part(data))
            self._keep(data)
        else:
            self._finish()
        return len(data)

    def drain(self) -> None:
        """Hand on what is in the pipe now: a process that still has it may write on for ever."""
        if not self.is_open:
            return
        held = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, held)
        left = held[0]
        while left > 0 and (count := self.on_readable()):
            left -= count
        if self.is_open:
            self.on_readable()  # the end of the pipe, perhaps

    def close(self) -> None:
        """Hand on what is left, a line without an end included, and close the descriptor."""
        self.drain()
        self._finish()

    def _finish(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self._descriptor)
            if self._begun:
                self._hand_on(b"\n")
            self._keep(b"")

    def _hand_on(self, data: bytes) -> None:
        *whole, self._begun = (self._begun + data).split(b"\n")
        lines = [piece for line in whole for piece in self._ended(line)]
        lines += self._newest()
        while len(self._begun) > self._max_bytes:
            lines.append(self._begun[: self._max_bytes] + MARK + b"\n")
            self._begun = self._begun[self._max_bytes :]
        if lines:
            self._take(lines)

    def _ended(self, line: bytes) -> list[bytes]:
        """Return a line in pieces; no piece if it is a bar whose last state was handed on."""
        line = _newest_state(line) if _is_bar(line) else line
        is_repeat = line != b"" and line == self._shown
        self._shown = b""
        cuts = range(self._max_bytes, len(line), self._max_bytes)
        pieces = [line[cut - self._max_bytes : cut] + MARK + b"\n" for cut in cuts]
        rest = line[len(pieces) * self._max_bytes :]
        return [] if is_repeat else [*pieces, rest + b"\n"]

    def _newest(self) -> list[bytes]:
        """Forget all states of a bar but the newest, and return that one if it is time."""
        if not _is_bar(self._begun):
            return []
        state = _newest_state(self._begun)
        # tqdm writes the return first, so its newest state may grow; other bars write it last.
        is_last = self._begun.endswith(b"\r")
        self._begun = state + b"\r" if is_last else b"\r" + self._begun.rpartition(b"\r")[2]
        now_s = time.monotonic()
        if not state or state == self._shown or now_s < self._next_state_s:
            return []
        self._shown, self._next_state_s = state, now_s + _STATE_EVERY_S
        return [state + b"\n"]


def _is_bar(text: bytes) -> bool:
    if b"\r" not in text or _NO_TEXT.search(text):
        return False
    with suppress(UnicodeDecodeError):
        text[: text.rindex(b"\r")].decode()  # what comes after it may go on
        return True
    return False


def _newest_state(text: bytes) -> bytes:
    """Return what a terminal would show of a text with carriage returns; blanks only erase."""
    return next((state for state in reversed(text.split(b"\r")) if state.strip()), b"")
