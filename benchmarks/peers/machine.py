"""How fast this machine is now: its cores, a cache line between them, one thread's memcpy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hccl_py.bench._perftest import compute_ns, core_to_core_ns
from hccl_py.bench.collective.analysis.limits import copy_gb_per_s

_PROBE_S = 0.01
_START_PROBE_S = 0.003
_PAIR_S = 0.002
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_COMPUTE_S = 0.002
_MAX_PAIRS = 5
_FAR_NS = 100.0
_SLOW = 1.3
_COPY_BYTES = 64 << 20


class Cores(NamedTuple):
    """What two cores did together.

    Attributes:
        core_to_core_ns: nanoseconds of a cache line, one way; None where there is one core, or
            another program held one of them.
        compute_ns: what the slower one took for some additions while both did them. A core takes
            longer that is a hyperthread of the other, or of a core that somebody else uses.
    """

    core_to_core_ns: float | None
    compute_ns: float


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
        times = core_to_core_ns(first, other, _PROBE_S / len(chosen))
        pairs.append((first, other, float(np.median(times)) if times else None))
    return {"core_to_core_ns": pairs, "memcpy_gb_per_s": copy_gb_per_s(_COPY_BYTES)}


def probe_cores() -> Cores:
    """Measure the first two usable cores for 5 ms."""
    first, *others = sorted(os.sched_getaffinity(0))[:2]
    times = core_to_core_ns(first, others[0], _START_PROBE_S) if others else []
    slower_ns = max(compute_ns([first, *others], _COMPUTE_S))
    return Cores(float(np.median(times)) if times else None, slower_ns)


def pin(distance: str) -> tuple[int, int]:
    """Leave this process, and those that it starts, two of its cores: near ones or far ones.

    Args:
        distance: near or far: of the cores that a cache line takes the least, or the most, time
            between, one of each pair being the first usable one or the core farthest from it.

    Returns:
        The two cores.

    Raises:
        OSError: there are no two, or other programs hold all.
    """
    threads = sorted(os.sched_getaffinity(0))
    if len(threads) < 2:
        raise OSError(f"expected two usable cores, got {len(threads)}")
    first_of_core = {siblings_of(thread): thread for thread in reversed(threads)}
    usable = sorted(first_of_core.values())  # not two hyperthreads of a core: they slow each other
    if len(usable) <= 2:  # no choice
        chosen = (usable[0], usable[1] if len(usable) == 2 else threads[1])
        os.sched_setaffinity(0, chosen)
        return chosen
    pairs = {(usable[0], core): ns for core, ns in _distances(usable[0], usable[1:]).items()}
    if pairs:
        _, farthest = max(pairs, key=lambda pair: pairs[pair])
        others = [core for core in usable[1:] if core != farthest]
        pairs |= {(farthest, core): ns for core, ns in _distances(farthest, others).items()}
    if not pairs:
        raise OSError(f"other programs hold the {len(usable)} usable cores")
    chosen = (min if distance == "near" else max)(pairs, key=lambda pair: pairs[pair])
    os.sched_setaffinity(0, chosen)
    return chosen


def siblings_of(thread: int) -> str:
    """Name the core that a hardware thread belongs to."""
    return Path(_SIBLINGS.format(thread)).read_text()


def _distances(core: int, others: Sequence[int]) -> dict[int, float]:
    """Return the nanoseconds of a cache line to each core, without those that are held."""
    times = {other: core_to_core_ns(core, other, _PAIR_S) for other in others}
    return {other: float(np.median(some)) for other, some in times.items() if some}


def name_cores(probes: Sequence[Cores], best_compute_ns: float) -> str:
    """Say what the cores were at those times.

    Returns:
        slow: one of them took 1.3 times as long to compute as both did at best; near or far, by
        what a cache line takes between them; moved: from one of these to another; empty: unknown.
    """
    kinds = set()
    for pair in probes:
        if pair.compute_ns > _SLOW * best_compute_ns:
            kinds.add("slow")
        elif pair.core_to_core_ns is not None:
            kinds.add(_distance(pair.core_to_core_ns))
        else:
            return ""
    return kinds.pop() if len(kinds) == 1 else "moved" if kinds else ""


def _distance(core_to_core_ns: float) -> str:
    return "far" if core_to_core_ns > _FAR_NS else "near"


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
        distance = _distance(float(np.median(times)))
        text.append(f"core {core} to {other}: {_range(times, 0)} ns ({distance})")
    return "; ".join(text)


def _range(values: Sequence[float], digits: int) -> str:
    median = f"{float(np.median(values)):.{digits}f}"
    if len(values) == 1:
        return median
    return f"{median} ({min(values):.{digits}f}-{max(values):.{digits}f} over the rounds)"
