"""`--validate`: measures every pair of ranks alone and finds links slower than their class.

A link is a direction from one rank to another. Links of one class, inside a node or between nodes,
should be alike: one that stays below 95 % of the class's median by more than its noise is slow. On
a busy machine many links look slow once. A suspicious link is therefore measured again, in turns
with links near the median, before it is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Protocol

import numpy as np

from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.rank import prepare, time_calls, time_each

LEAST_SHARE = 0.95
_FIRST_REPEATS = 3
_SECOND_REPEATS = 9
_MOST_BLOCKS = 4
"""Blocks of repeats for one link whose noise hides whether it is slow."""

_BLOCKS_IN_ALL = 60
"""Such blocks for all links together, so that a noisy machine does not take minutes."""

_REPEAT_S = 0.02
_LEAST_CALLS, _MOST_CALLS = 2, 200
_PINGS = 100


@dataclass
class Link:
    """One direction between two ranks.

    Attributes:
        crosses: whether the link is between nodes.
        gb_per_s: bandwidth in each measurement.
        latency_us: half of a ping-pong of 4 bytes, the same in both directions.
        was_suspicious: whether the link was measured again.
        class_median: of the links that it was compared with, in GB/s; None: it is not below them.
        reference: median of links of its class in the moments when it was measured again, in GB/s.
        error: noise of the difference between its median and the class's, in GB/s.
    """

    source: int
    target: int
    crosses: bool
    gb_per_s: list[float]
    latency_us: float
    was_suspicious: bool = False
    class_median: float | None = None
    reference: float | None = None
    error: float = 0.0

    @property
    def rate(self) -> float:
        """Median bandwidth in GB/s."""
        return float(np.median(self.gb_per_s))

    @property
    def noise(self) -> float:
        """Half of the span from the 10th to the 90th percentile, in GB/s."""
        return _noise(self.gb_per_s)

    @property
    def is_slow(self) -> bool:
        """Whether it is below the limit by more than the noise."""
        median = self.class_median
        return median is not None and self.rate < LEAST_SHARE * median - self.error

    @property
    def is_hidden(self) -> bool:
        """Whether it is below the limit by less than the noise."""
        return self.class_median is not None and not self.is_slow


class Asked(Protocol):
    """All ranks of a run: `ranks.Ranks` or `job_ranks.JobRanks`."""

    def ask(self, function: Callable[..., Any], *arguments: Any, what: str) -> Sequence[Any]:
        """Run a function on all ranks; return their results in rank order."""


class Validator:
    """Measures links over the ranks' first contender."""

    def __init__(self, ranks: Asked, nodes: Sequence[int], num_bytes: int) -> None:
        """Prepare to measure; the ranks are open.

        Args:
            ranks: all ranks.
            nodes: the node of each rank.
            num_bytes: size of a message.
        """
        self._ranks, self._nodes, self._num_bytes = ranks, nodes, num_bytes
        self._blocks = _BLOCKS_IN_ALL

    def run(self) -> list[Link]:
        """Measure every link, and suspicious ones again."""
        n = len(self._nodes)
        latency_us = {(a, b): self._latency_us(a, b) for a, b in permutations(range(n), 2) if a < b}
        links = []
        for a, b in permutations(range(n), 2):
            crosses = self._nodes[a] != self._nodes[b]
            latency = latency_us[min(a, b), max(a, b)]
            links.append(Link(a, b, crosses, self._rates(a, b, _FIRST_REPEATS), latency))
        for crosses in (False, True):
            alike = [link for link in links if link.crosses == crosses]
            limit = LEAST_SHARE * _median(alike) if alike else 0.0
            for link in [link for link in alike if link.rate < limit]:
                self._measure_again(link, alike)
        return links

    def _measure_again(self, link: Link, alike: Sequence[Link]) -> None:
        """Measure a suspicious link and those nearest to the median in turns."""
        median = _median(alike)
        others = [other for other in alike if other is not link]
        typical = sorted(others, key=lambda other: abs(other.rate - median))[:3]
        link.was_suspicious = True
        link.gb_per_s.clear()
        reference: list[float] = []
        for block in range(_MOST_BLOCKS):
            for turn in range(_SECOND_REPEATS):
                link.gb_per_s += self._rates(link.source, link.target, 1)
                other = typical[turn % len(typical)]
                reference += self._rates(other.source, other.target, 1)
            self._blocks -= 1
            link.reference = float(np.median(reference))
            link.class_median = min(median, link.reference)
            # Three standard errors of the difference between two medians of these many repeats.
            link.error = float(np.hypot(link.noise, _noise(reference)) / np.sqrt(block + 1))
            if link.rate >= LEAST_SHARE * link.class_median:
                link.class_median = None
                return
            if link.is_slow or self._blocks <= 0:
                return

    def _rates(self, source: int, target: int, repeats: int) -> list[float]:
        """Send for a while from one rank to the other; the time is the slower side's."""
        self._prepare("send_recv", source, target, self._num_bytes)
        what = f"measuring the link from rank {source} to rank {target}"
        call_s = float(np.nanmax(self._ranks.ask(time_calls, 0, 1, 1, what=what)))
        calls = int(np.clip(_REPEAT_S / call_s, _LEAST_CALLS, _MOST_CALLS))
        asked = [self._ranks.ask(time_calls, 0, calls, 0, what=what) for _ in range(repeats)]
        return [self._num_bytes / float(np.nanmax(seconds)) / 1e9 for seconds in asked]

    def _latency_us(self, source: int, target: int) -> float:
        self._prepare("ping_pong", source, target, 4)
        what = f"measuring the latency between rank {source} and rank {target}"
        times = self._ranks.ask(time_each, 0, _PINGS, _PINGS // 10, False, what=what)
        return float(np.nanmedian(times)) * 1e6

    def _prepare(self, collective: str, source: int, target: int, num_bytes: int) -> None:
        pairs = ((source, target),)
        call = Call(collective, len(self._nodes), 0, "none", "uint8", num_bytes, pairs=pairs)
        self._ranks.ask(prepare, call, what=f"preparing {collective}")


def _median(links: Sequence[Link]) -> float:
    return float(np.median([link.rate for link in links]))


def _noise(rates: Sequence[float]) -> float:
    p10, p90 = np.percentile(rates, (10, 90))
    return float(p90 - p10) / 2
