"""The lines of the user's program that called collectives; only with HCCL_DEBUG=1.

Without the variable this costs nothing.
"""

import os
import sys
from pathlib import Path
from typing import Any

Frames = list[dict[str, Any]]
"""No frame or one, in the format of a flight recorder's file."""

_OURS = frozenset({"hccl_py", "torch"})
_CAPACITY = 4096  # the number of calls that the engine records


class CallSites:
    """The lines that made the last calls of one communicator.

    Threads that submit to one communicator at the same time may get each other's line.
    """

    def __init__(self) -> None:
        # By number modulo the capacity: number and frames. Entries are replaced whole.
        self._ring: dict[int, tuple[int, Frames]] = {}
        self.are_noted = os.environ.get("HCCL_DEBUG", "0") not in ("", "0")

    def note(self, number: int) -> None:
        """Record the caller of the collective with this number."""
        self._ring[number % _CAPACITY] = (number, _user_frames())

    def site_of(self, number: int) -> str:
        """Return `train.py:41`, or an empty string if it is not known (any more)."""
        frames = self.frames_of(number)
        return f"{_short(frames[0]['filename'])}:{frames[0]['line']}" if frames else ""

    def frames_of(self, number: int) -> Frames:
        """Return the line that made a call, if it is known."""
        noted, frames = self._ring.get(number % _CAPACITY, (0, []))
        return frames if noted == number else []


def _user_frames() -> Frames:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            code = frame.f_code
            return [{"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}]
        frame = frame.f_back  # type: ignore[assignment]
    return []  # called from C++ only: DDP's reducer, on a thread of autograd


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path
