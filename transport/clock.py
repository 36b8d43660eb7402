"""The offset between the clocks of two ranks, measured with heartbeats."""

import time
from collections import deque
from typing import NamedTuple

_SAMPLES = 32


class ClockReading(NamedTuple):
    """The offset of a rank's clock from its coordinator's.

    Attributes:
        coordinator: the rank whose clock is the reference.
        offset_ns: what to add to this rank's CLOCK_REALTIME to get the coordinator's.
        round_trip_ns: of the heartbeat that measured it; half of it bounds the error.
        monotonic_offset_ns: this rank's CLOCK_REALTIME minus its CLOCK_MONOTONIC.
    """

    coordinator: int
    offset_ns: int
    round_trip_ns: int
    monotonic_offset_ns: int


class ClockProbe:
    """Keeps the quickest of the last heartbeats, whose error is the smallest."""

    def __init__(self, coordinator: int) -> None:
        """Compare with the clock of `coordinator`."""
        self._coordinator = coordinator
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)

    def add(self, sent_ns: int, theirs_ns: int, now_ns: int) -> None:
        """Add a heartbeat: when it was sent here, answered there and back here, by each clock."""
        if now_ns >= sent_ns:
            self._samples.append((now_ns - sent_ns, theirs_ns - (sent_ns + now_ns) // 2))

    def reading(self) -> ClockReading | None:
        """Return the best reading; None before the first answer."""
        if not self._samples:
            return None
        round_trip_ns, offset_ns = min(self._samples)
        monotonic_offset_ns = time.time_ns() - time.monotonic_ns()
        return ClockReading(self._coordinator, offset_ns, round_trip_ns, monotonic_offset_ns)
