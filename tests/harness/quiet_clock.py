"""A clock for promises of time, on a machine that does other things as well.

    began = Moment.now()
    ...
    assert Moment.now() - began < 2.0

The difference of two moments is the wall time between them, less the time for which threads of this
test's processes waited for a core meanwhile, less what the machine's host took. A promise counts in
full where nothing else runs, and a test that runs beside others does not fail because of them. The
difference is at least a fifth of the wall time: among eight ranks on two cores some thread always
waits, which must not stop the clock.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

HANG_S = 120.0
"""Only a hang lasts as long, however busy the machine is."""
SLOWEST = 5
"""So many seconds of wall time count for at least one."""
ROOT = "HCCL_TEST_ROOT"
"""The process of pytest whose descendants are watched; `conftest.py` sets it."""
_STEAL = 8  # the column of /proc/stat


class Moment(NamedTuple):
    """A time on the monotonic clock, and how long each thread had waited for a core by then."""

    s: float
    taken_s: float
    """When the reading was complete: it takes milliseconds, on a busy machine many."""
    stolen_s: float
    waited_s: dict[int, float]

    @classmethod
    def now(cls) -> Moment:
        """Read the clocks of the machine and of all threads of this test's processes."""
        s, waited = time.monotonic(), {}
        for pid in _descendants(int(os.environ.get(ROOT, os.getpid()))):
            with suppress(OSError):  # it has ended
                for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                    waited[int(thread.parent.name)] = int(thread.read_text().split()[1]) / 1e9
        return cls(s, time.monotonic(), _stolen_s(), waited)

    @classmethod
    def read(cls, file: Path) -> Moment:
        """Read what `write` wrote, in any process."""
        *times, waited_s = json.loads(file.read_text())
        return cls(*times, {int(thread): waited for thread, waited in waited_s.items()})

    def write(self, file: Path) -> None:
        """Make the file appear, whole."""
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps(self))
        unfinished.rename(file)

    def __sub__(self, began: Moment) -> float:
        wall_s = self.s - began.taken_s
        waited_s = sum(s - began.waited_s.get(thread, 0.0) for thread, s in self.waited_s.items())
        lost_s = waited_s + self.stolen_s - began.stolen_s
        return max(wall_s - lost_s, wall_s / SLOWEST)


def over_after(limit_s: float) -> Callable[[], bool]:
    """Return what says whether `limit_s` have passed since now, on this clock."""
    began = Moment.now()
    # Moments cost milliseconds: none is taken before the limit may have passed.
    return lambda: time.monotonic() - began.s > limit_s and Moment.now() - began > limit_s


def _descendants(root: int) -> Iterator[int]:
    children = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = status.read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(status.parent.name))
    pids = [root]
    while pids:
        pid = pids.pop()
        yield pid
        pids.extend(children[pid])


def _stolen_s() -> float:
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=_STEAL + 1)[_STEAL])
    return ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
