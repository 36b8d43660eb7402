"""What a terminal shows of a job that runs: steps, traffic and time."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hccl_py.launcher.progress.rank_progress import RankProgress

PERIOD_S = 1.0
_WINDOW = 10  # lines over which a rate is taken


class _Totals(NamedTuple):
    at_s: float
    steps: int
    collectives: int
    num_bytes: int


class StatusLine:
    """Counts, once in PERIOD_S, what all ranks of a job did."""

    def __init__(self) -> None:
        self._latest: dict[int, RankProgress] = {}  # of ranks that have ended, too
        self._totals: deque[_Totals] = deque(maxlen=_WINDOW)
        self._began_s = math.inf
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for the next line; the first call begins to count the time."""
        self._began_s = min(self._began_s, now_s)
        return now_s >= self._next_s

    def line(self, ranks: Sequence[RankProgress], now_s: float) -> str:
        """Return the line for what is known of the ranks that run.

        It is empty until a rank has communicated.
        """
        self._next_s = now_s + PERIOD_S
        self._latest.update((one.rank, one) for one in ranks)
        everyone = self._latest.values()
        if any(one.collectives or one.num_bytes for one in everyone):
            # All ranks step together, so the job is as far as the first of them.
            steps = max(one.steps for one in everyone)
            collectives = max(one.collectives for one in everyone)
            num_bytes = sum(one.num_bytes for one in everyone)
            self._totals.append(_Totals(now_s, steps, collectives, num_bytes))
        if len(self._totals) < 2:
            return ""
        then, now = self._totals[0], self._totals[-1]
        steps_per_s, collectives_per_s, bytes_per_s = (
            (after - before) / (now.at_s - then.at_s)
            for after, before in zip(now[1:], then[1:], strict=True)
        )
        parts = [f"{bytes_per_s / 1e9:.2f} GB/s in {collectives_per_s:.0f} collectives/s"]
        if now.steps:
            parts.insert(0, f"steps {now.steps}, {steps_per_s:.1f}/s")
        return " | ".join([*parts, _clock(now_s - self._began_s)])


def _clock(elapsed_s: float) -> str:
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"
