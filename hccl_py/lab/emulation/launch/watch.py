"""Watches the process that plays the network: is it alive, and whom does it kill?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_DEADLINE_S = 8.0
"""Below the 10 s that a rank waits for an answer of the network: the launcher knows more."""
_START_S = 20.0  # more, until it has started
_TURN_S = 1.0


class Watch:
    """Reads the pipe of the network's process; a service of the loop, and its `why_killed`."""

    def __init__(self, pipe: int, on_silence: Callable[[str], None]) -> None:
        """Read a pipe from now on; `on_silence` gets what is wrong, once."""
        self._pipe, self._on_silence = pipe, on_silence
        os.set_blocking(pipe, False)
        self._turned_s = time.monotonic()
        self._heard_s = self._turned_s + _START_S
        self._unread = ""
        self._steps: dict[int, str] = {}  # of ranks that were killed

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._turned_s + _TURN_S

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        self._read()
        if now_s > self._turned_s + _DEADLINE_S / 2:  # this process stood still itself
            self._heard_s = max(self._heard_s, now_s)
        self._turned_s = now_s
        if now_s > self._heard_s + _DEADLINE_S:
            self._heard_s = float("inf")
            self._on_silence(
                f"the process that emulates the network did not answer for {_DEADLINE_S:.0f} s "
                "(was it stopped?)"
            )

    def why_killed(self, rank: int) -> str:
        """Say which fault of the file killed a rank; empty: none."""
        self._read()
        step = self._steps.pop(rank, None)
        return f"as the file of --emulate says: at step {step}: kill rank {rank}" if step else ""

    def _read(self) -> None:
        try:
            text = os.read(self._pipe, 1 << 16).decode()
        except BlockingIOError:
            return
        if text:
            self._heard_s = time.monotonic()
        *lines, self._unread = (self._unread + text).split("\n")
        for line in lines:
            word, *rest = line.split()
            if word == "kill":
                self._steps[int(rest[0])] = rest[1]
