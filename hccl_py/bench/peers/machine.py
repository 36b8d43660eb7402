"""How fast this machine is now: one cache line between cores, and one thread's memcpy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl_py.bench.collective.analysis.limits import copy_gb_per_s
from hccl_py.transport import _core

_PROBE_S = 0.01
_START_PROBE_S = 0.003
_MAX_PAIRS = 5
_FAR_NS = 100.0
_COPY_BYTES = 64 << 20


def probe() -> dict[str, Any]:
    """Measure for ten milliseconds and some copies.

    Returns:
        `core_to_core_ns`: [core, core, nanoseconds one way] of the first usable core and some
        others, None where another program held one of them; `memcpy_gb_per_s` (10^9 bytes that one
        thread copies in a second, of 64 MiB).
    """
    first, *others = sorted(os.sched_getaffinity(0))
    chosen = others[:: -(-len(others) // _MAX_PAIRS) or 1]
    pairs: list[tuple[int, int, float | None]] = []
    for other in chosen:
        times = _core.core_to_core_ns(first, other, _PROBE_S / len(chosen))
        pairs.append((first, other, float(np.median(times)) if times else None))
    return {"core_to_core_ns": pairs, "memcpy_gb_per_s": copy_gb_per_s(_COPY_BYTES)}


def core_to_core_ns() -> float | None:
    """Measure a cache line from the first usable core to the second one, for 3 ms.

    Returns:
        Nanoseconds one way; None where there is one core, or another program held one of them.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    times = _core.core_to_core_ns(first, others[0], _START_PROBE_S) if others else []
    return float(np.median(times)) if times else None


def name_distance(times_ns: Sequence[float | None]) -> str:
    """Say what the cores were at those times: near, far, or moved; empty if that is not known."""
    known = [time for time in times_ns if time is not None]
    kinds = {"far" if time > _FAR_NS else "near" for time in known}
    if not known or len(known) < len(times_ns):
        return ""
    return kinds.pop() if len(kinds) == 1 else "moved"


def memcpy_gb_per_s(probes: Sequence[dict[str, Any]]) -> float:
    """Return the median over the probes of a run."""
    return float(np.median([each["memcpy_gb_per_s"] for each in probes]))


def describe(probes: Sequence[dict[str, Any]]) -> str:
    """Render the probes of a run in one line; with several, medians and ranges."""
    copies = [each["memcpy_gb_per_s"] for each in probes]
    text = [f"memcpy of 64 MiB by one thread: {_range(copies, 1)} GB/s"]
    for number, (core, other, _) in enumerate(probes[0]["core_to_core_ns"]):
        found = [each["core_to_core_ns"][number][2] for each in probes]
        times = [time for time in found if time is not None]
        if not times:
            text.append(f"cores {core} and {other} never ran at once: other programs hold them")
            continue
        kind = name_distance([float(np.median(times))])
        text.append(f"core {core} to {other}: {_range(times, 0)} ns ({kind})")
    return "; ".join(text)


def _range(values: Sequence[float], digits: int) -> str:
    median = f"{float(np.median(values)):.{digits}f}"
    if len(values) == 1:
        return median
    return f"{median} ({min(values):.{digits}f}-{max(values):.{digits}f} over the rounds)"
