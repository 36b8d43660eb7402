"""A clock for promises of time, on a machine that does other things as well.

    began_s = quiet_s()
    ...
    assert quiet_s() - began_s < 2.0

The clock stands still while a task of this machine waits for a core, and while the machine itself
waits for one of its host. So a promise counts in full where nothing else runs, and a test that runs
beside others does not fail because of them. All processes of a machine read the same clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HANG_S = 120.0
"""Only a hang lasts as long, however busy the machine is."""
_STEAL = 8  # the column of /proc/stat


def quiet_s() -> float:
    """Return the time of the clock, in seconds since some moment."""
    return time.monotonic() - _waited_s() - _stolen_s()


class Moment(NamedTuple):
    """A time on the monotonic clock and on the quiet one."""

    s: float
    quiet_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.monotonic(), quiet_s())


def over_after(limit_s: float) -> Callable[[], bool]:
    """Return what says whether so many quiet seconds have passed since now, or `HANG_S`."""
    quiet_limit_s, last_s = quiet_s() + limit_s, time.monotonic() + HANG_S
    return lambda: time.monotonic() > last_s or quiet_s() > quiet_limit_s


def _waited_s() -> float:
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:  # a kernel without CONFIG_PSI
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


def _stolen_s() -> float:
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=_STEAL + 1)[_STEAL])
    return ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
