"""Whether a result can be trusted: what else the machine did while it was measured.

A doubt is a short sentence, printed beside the result in the table, CSV and JSON.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hccl_py.transport.network.system_calls import usable_cores

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAST_CORE_S = 0.5
"""The kernel counts in ticks of 10 ms: a shorter measurement says nothing about the load."""

_MOST_SPREAD = 0.5
_MOST_OTHERS = 0.1
_MOST_STOLEN = 0.02
_MOST_DRIFT = 0.3
_LEAST_CALLS = 10
_MOST_APART = 3.0


@dataclass(frozen=True)
class Load:
    """How the usable cores spent their time since the boot, in core seconds."""

    wall_s: float
    busy_s: float
    stolen_s: float
    ours_s: float

    @classmethod
    def now(cls, pids: Sequence[int]) -> Load:
        """Read the kernel's counters.

        Args:
            pids: of the rank processes; this process counts too.
        """
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        cores = {f"cpu{core}" for core in usable_cores()}
        # user, nice, system, idle, iowait, irq, softirq, steal
        counted = np.array([list(map(int, w[1:9])) for w in lines if w and w[0] in cores])
        total = counted.sum(axis=0) / _TICKS_PER_S
        ours_s = sum(map(_cpu_s, (*pids, os.getpid())))
        return cls(time.monotonic(), float(total[[0, 1, 2, 5, 6]].sum()), float(total[7]), ours_s)


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS_PER_S


def load_doubts(before: Load, after: Load) -> list[str]:
    """Return doubts because other programs, or the machine's host, used the cores."""
    core_s = (after.wall_s - before.wall_s) * len(usable_cores())
    if core_s < _LEAST_CORE_S:
        return []
    stolen = (after.stolen_s - before.stolen_s) / core_s
    others = (after.busy_s - before.busy_s - (after.ours_s - before.ours_s)) / core_s
    doubts = []
    if others > _MOST_OTHERS:
        doubts.append(f"other programs used {others:.0%} of the cores")
    if stolen > _MOST_STOLEN:
        doubts.append(f"the host took {stolen:.0%} of the cores away")
    return doubts


def spread_doubts(round_us: Sequence[float], num_calls: int) -> list[str]:
    """Return doubts because of few calls or of rounds that differ."""
    if num_calls < _LEAST_CALLS:
        return [f"only {num_calls} calls"]
    p10, median, p90 = np.percentile(round_us, (10, 50, 90))
    spread = (p90 - p10) / median
    return [f"rounds differ by {spread:.0%}"] if spread > _MOST_SPREAD else []


def slow_call_doubts(time_us: float, p50_us: float) -> list[str]:
    """Return doubts because the mean of a round and the median of single calls disagree."""
    if max(time_us, p50_us) < _MOST_APART * min(time_us, p50_us):
        return []
    if time_us > p50_us:
        return [f"time is {time_us / p50_us:.1f} x p50: a few slow calls take most of it"]
    return [f"p50 is {p50_us / time_us:.1f} x time: single calls met a busier machine"]


def drift_doubts(before: float, after: float) -> list[str]:
    """Return doubts because memcpy's rate, in GB/s, changed."""
    if abs(after - before) <= _MOST_DRIFT * max(before, after):
        return []
    return [f"memcpy went from {before:.1f} to {after:.1f} GB/s"]
