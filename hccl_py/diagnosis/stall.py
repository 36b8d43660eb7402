"""Calls without progress: when the ranks compare their calls, and the warning about a stall.

Ranks that made different calls detect it by the messages they receive, unless all of them wait. So
a rank without progress makes all ranks report, after 1, 2, 4, 8 ... seconds, and the coordinator
searches for a mismatch or a deadlock. If there is none and a call has stalled for
HCCL_STALL_WARNING_S, the coordinator (rank 0) warns on its stderr.
"""

import contextlib
import os
import sys
import time

from hccl_py.diagnosis.reports import Reports
from hccl_py.diagnosis.timeout import arrivals
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError

VARIABLE = "HCCL_STALL_WARNING_S"
STUCK_S = 2.0
"""Without progress for so long, a call may be part of a deadlock."""
_DEFAULT_S = 30.0
_FIRST_COMPARISON_S = 1.0
_MAX_TURN_S = 1.0  # a process that was stopped must not count that time


def warning_from_environment() -> float:
    """Return after how many seconds of a stall to warn; 0: never.

    Raises:
        InvalidArgumentError: the variable is no number of seconds.
    """
    text = os.environ.get(VARIABLE, "")
    with contextlib.suppress(ValueError):
        seconds = float(text or _DEFAULT_S)
        if seconds >= 0:
            return seconds
    raise InvalidArgumentError(
        f"{VARIABLE}: expected a number of seconds, 0 for no warning, got {text!r}"
    )


class StallWatch:
    """Watches the calls of one rank in one communicator. For the control thread.

    Every rank watches its own calls; the coordinator also prints the warnings.

    Attributes:
        stalled_s: how long the call under way has made no progress.
    """

    def __init__(self, name: str, core: _core.Communicator) -> None:
        self._name = name
        self._core = core
        self._warning_s = warning_from_environment()
        self._now_s = time.monotonic()
        self._reset(0)
        # On the coordinator: the call of its warning (number, name, start), and the next warning.
        self._warned: tuple[int, str, float] | None = None
        self._next_line_s = self._warning_s

    def _reset(self, num_finished: int) -> None:
        self._num_finished = num_finished
        self._bytes_done: int | None = None  # when the stall began, or at its last warning
        self.stalled_s = 0.0
        self._comparison_s = _FIRST_COMPARISON_S
        self._next_warning_s = self._warning_s

    def must_compare(self) -> bool:
        """Update the time of the stall; return whether all ranks should report now."""
        self._check_end()
        now_s = time.monotonic()
        turn_s = min(now_s - self._now_s, _MAX_TURN_S)
        self._now_s = now_s
        num_finished = self._core.num_finished()
        if num_finished != self._num_finished or num_finished == self._core.sequence():
            self._reset(num_finished)
            return False
        self.stalled_s += turn_s
        if self._bytes_done is None:
            self._bytes_done = self._core.progress().bytes_done
        warns = 0 < self._next_warning_s <= self.stalled_s
        compares = self.stalled_s >= self._comparison_s
        if compares:
            self._comparison_s *= 2
        if warns:
            self._next_warning_s *= 2
            before, self._bytes_done = self._bytes_done, self._core.progress().bytes_done
            if self._bytes_done != before:  # a large call over a slow network
                self._reset(num_finished)
                return False
        return warns or compares

    def warn(self, reports: Reports) -> None:
        """Warn if a call has stalled for long enough."""
        under_way = [one for one in reports.by_rank.values() if one.progress.sequence]
        stalled_s = max((one.stalled_s for one in under_way), default=0.0)
        if not self._warning_s or stalled_s < self._next_line_s:
            return
        first = min(under_way, key=lambda one: one.progress.sequence).progress
        if self._warned is None:
            self._warned = first.sequence, first.call, time.monotonic() - stalled_s
        self._next_line_s = 2 * stalled_s
        _print(
            f"{first.call} of communicator {self._name}: no progress for {stalled_s:.0f} s; "
            f"{arrivals(reports, first.sequence).text} ({VARIABLE} sets the delay of this warning)"
        )

    def _check_end(self) -> None:
        if self._warned is None:
            return
        number, call, since_s = self._warned
        if self._core.num_finished() >= number:
            stalled_s = time.monotonic() - since_s
            _print(f"{call} of communicator {self._name} continues after {stalled_s:.0f} s")
        elif not self._core.failed():
            return
        self._warned, self._next_line_s = None, self._warning_s


def _print(line: str) -> None:
    print(f"hccl: {line}", file=sys.stderr, flush=True)
