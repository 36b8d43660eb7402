"""Whole lines from a rank's pipe.

A progress bar such as tqdm's writes states that end in a carriage return, and a line end at last.
On a terminal each state replaces the previous one. Among the lines of many ranks it becomes a line
a second and the last state, so that it does not hide other lines. Binary output is not a bar.
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
    """Passes on the content of a pipe in whole lines with their ends, some at a time.

    Bytes are unchanged, valid UTF-8 or not. A line of more than `max_line_bytes` is passed in
    pieces that end in MARK, so that an endless line takes bounded memory.
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
            part: returns the part of received bytes that belongs to lines.
            max_line_bytes: longest line that is not cut.
        """
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take, self._keep, self._part = take, keep, part
        self._max_bytes = max_line_bytes
        self._begun = b""  # the unfinished line, or a progress bar's newest state
        self._shown = b""  # the last state of this bar that was passed on
        self._next_state_s = 0.0
        self.read_s = 0.0  # time of the last received byte
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    @property
    def unfinished(self) -> bytes:
        """The unfinished line."""
        return _newest_state(self._begun)

    @property
    def prompt(self) -> bytes:
        """The unfinished line, unless it is a progress bar."""
        return b"" if _is_bar(self._begun) else self._begun

    def take_unfinished(self) -> bytes:
        """Return the unfinished line, and regard it as shown."""
        text, self._begun = self._begun, b""
        return text

    def on_readable(self) -> int:
        """Read once and pass on whole lines; close at the end of the pipe.

        Returns:
            The number of bytes read; 0: nothing now, or the end.
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
        """Pass on the current content of the pipe: a process that holds it may write for ever."""
        if not self.is_open:
            return
        held = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, held)
        left = held[0]
        while left > 0 and (count := self.on_readable()):
            left -= count
        if self.is_open:
            self.on_readable()  # perhaps the end of the pipe

    def close(self) -> None:
        """Pass on the rest, including an unfinished line, and close the descriptor."""
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
        """Return a line in pieces; none if it is a bar whose last state was passed on."""
        line = _newest_state(line) if _is_bar(line) else line
        is_repeat = line != b"" and line == self._shown
        self._shown = b""
        cuts = range(self._max_bytes, len(line), self._max_bytes)
        pieces = [line[cut - self._max_bytes : cut] + MARK + b"\n" for cut in cuts]
        rest = line[len(pieces) * self._max_bytes :]
        return [] if is_repeat else [*pieces, rest + b"\n"]

    def _newest(self) -> list[bytes]:
        """Drop all states of a bar but the newest, and return that one if it is due."""
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
        text[: text.rindex(b"\r")].decode()  # the rest may continue
        return True
    return False


def _newest_state(text: bytes) -> bytes:
    """Return a text with carriage returns as a terminal shows it; blanks only erase."""
    return next((state for state in reversed(text.split(b"\r")) if state.strip()), b"")
