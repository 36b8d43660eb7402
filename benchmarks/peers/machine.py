"""Probes of the machine's speed: two cores, a cache line between them, one thread's memcpy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hccl_py.bench._perftest import compute_ns, core_to_core_ns
from hccl_py.bench.collective.analysis.limits import copy_gb_per_s

_START_PROBE_S = 0.003
_PAIR_S = 0.002
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_COMPUTE_S = 0.002
_FAR_NS = 100.0
_SLOW = 1.3
_COPY_BYTES = 64 << 20


class Cores(NamedTuple):
    """The measurement of two cores together.

    Attributes:
        core_to_core_ns: nanoseconds of a cache line, one way; None with one core, or if another
            program occupied one of them.
        compute_ns: time of the slower core for some additions while both did them. It is longer for
            two hyperthreads of a core, or if another program uses a core's other hyperthread.
    """

    core_to_core_ns: float | None
    compute_ns: float


def probe() -> dict[str, float]:
    """Measure the rate of one thread's memcpy of 64 MiB, in GB/s."""
    return {"memcpy_gb_per_s": copy_gb_per_s(_COPY_BYTES)}


def probe_cores() -> Cores:
    """Measure the first two usable cores for 5 ms."""
    first, *others = sorted(os.sched_getaffinity(0))[:2]
    times = core_to_core_ns(first, others[0], _START_PROBE_S) if others else []
    slower_ns = max(compute_ns([first, *others], _COMPUTE_S))
    return Cores(float(np.median(times)) if times else None, slower_ns)


def pin(distance: str) -> tuple[int, int]:
    """Restrict this process and its children to two of its cores.

    Args:
        distance: near or far: the pair of cores with the least or the most time of a cache line.
            Pairs have the first usable core, or the core farthest from it.

    Returns:
        The two cores.

    Raises:
        OSError: there are not two cores, or other programs occupy all of them.
    """
    threads = sorted(os.sched_getaffinity(0))
    if len(threads) < 2:
        raise OSError(f"expected two usable cores, got {len(threads)}")
    first_of_core = {siblings_of(thread): thread for thread in reversed(threads)}
    usable = sorted(first_of_core.values())  # one hyperthread of each core: two slow each other
    if len(usable) <= 2:  # no choice
        pairs = {(usable[0], usable[1] if len(usable) == 2 else threads[1]): 0.0}
    elif pairs := _distances(usable[0], usable[1:]):
        _, farthest = max(pairs, key=lambda pair: pairs[pair])
        pairs |= _distances(farthest, [core for core in usable[1:] if core != farthest])
    if not pairs:
        raise OSError(f"other programs occupy the {len(usable)} usable cores")
    chosen = (min if distance == "near" else max)(pairs, key=lambda pair: pairs[pair])
    os.sched_setaffinity(0, chosen)
    return chosen


def siblings_of(thread: int) -> str:
    """Return the hardware threads of a thread's core, as the kernel writes them."""
    return Path(_SIBLINGS.format(thread)).read_text()


def _distances(core: int, others: Sequence[int]) -> dict[tuple[int, int], float]:
    """Return the nanoseconds of a cache line to each core that is not occupied."""
    times = {(core, other): core_to_core_ns(core, other, _PAIR_S) for other in others}
    return {pair: float(np.median(some)) for pair, some in times.items() if some}


def name_cores(probes: Sequence[Cores], best_compute_ns: float) -> str:
    """Return the kind of the cores in all probes.

    Returns:
        slow: one of them took 1.3 times the best time to compute; near or far, by the time of a
        cache line; moved: the probes differ; empty: unknown.
    """
    kinds = set()
    for pair in probes:
        if pair.compute_ns > _SLOW * best_compute_ns:
            kinds.add("slow")
        elif pair.core_to_core_ns is not None:
            kinds.add("far" if pair.core_to_core_ns > _FAR_NS else "near")
        else:
            return ""
    return kinds.pop() if len(kinds) == 1 else "moved" if kinds else ""
