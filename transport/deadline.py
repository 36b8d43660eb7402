"""One deadline, handed down through every wait of an operation."""

import select
import time
from collections.abc import Callable


class Deadline:
    """A point in time that all steps of one operation share.

    Attributes:
        timeout_s: how far away it was at the start.
        hopeless: if set, returns a reason to give up earlier, or "".
    """

    def __init__(self, timeout_s: float, hopeless: Callable[[], str] | None = None) -> None:
        self.timeout_s = timeout_s
        self.hopeless = hopeless
        self._start_s = time.monotonic()

    @property
    def end_s(self) -> float:
        """The point in time, by `time.monotonic`."""
        return self._start_s + self.timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.end_s - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s == 0.0

    def __str__(self) -> str:
        elapsed_s = time.monotonic() - self._start_s
        return f"after {elapsed_s:.1f} s (allowed {self.timeout_s:g} s)"


def pause(duration_s: float) -> None:
    """Wait. A sandbox may forbid the system call of `time.sleep`, which raises then."""
    select.select((), (), (), duration_s)
