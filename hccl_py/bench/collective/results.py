"""The evaluated times: a `Row` for each size, with a `Result` for each contender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hccl_py.bench.collective.analysis.profile import Profile


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of some values."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize values, interpolating between neighbours."""
        p10, median, p90 = np.percentile(values, (10, 50, 90))
        return cls(float(median), float(p10), float(p90))


@dataclass
class Result:
    """One contender at one size.

    Attributes:
        wrong: wrong elements; None: nothing was checked.
        round_us: time of a call in each round.
        rank_us: for each round the time of a call on each rank; not a number where it takes no
            part.
        call_us: times of single calls on all ranks; with --measure latency those of each call's
            slowest rank.
        cpu_us: for each rank the CPU time of a call, in one round; not a number as above.
    """

    contender: str
    wrong: int | None
    calls_per_round: int
    round_us: list[float] = field(default_factory=list)
    rank_us: list[list[float]] = field(default_factory=list)
    call_us: list[npt.NDArray[np.float64]] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    @property
    def time_us(self) -> Spread:
        """Time of one call."""
        return Spread.of(self.round_us)

    @property
    def calls_us(self) -> dict[str, float]:
        """Percentiles and maximum of single calls; empty if these were not timed."""
        if not self.call_us:
            return {}
        every = np.concatenate([times.ravel() for times in self.call_us])
        percentiles = np.nanpercentile(every, (50, 90, 99, 100))
        return dict(zip(("p50", "p90", "p99", "max"), map(float, percentiles), strict=True))

    @property
    def rank_cpu_us(self) -> float | None:
        """CPU time of a call, the mean over ranks; None if it was not measured."""
        return float(np.nanmean(self.cpu_us)) if self.cpu_us else None

    @property
    def ranks_us(self) -> list[float]:
        """Median over the rounds, for each rank; empty if there are no rounds."""
        return [float(time) for time in np.median(self.rank_us, axis=0)] if self.rank_us else []

    @property
    def rank_spread(self) -> float | None:
        """Slowest minus fastest rank, as a part of their mean; None if there are no rounds."""
        if not self.rank_us:
            return None
        times = np.array(self.ranks_us)
        return float((np.nanmax(times) - np.nanmin(times)) / np.nanmean(times))


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        results: the first is what the others are compared with.
        copy_gb_per_s: one thread's memcpy of as many bytes.
        wire_gb_per_s: plain sockets between two nodes, in each direction used; None: one node.
        limit_gb_per_s: the busbw that one of these allows; None: neither applies.
        doubts: why these results cannot be trusted.
        profiles: of the first contender, one for each rank, with --profile.
    """

    size: int
    count: int
    busbw_factor: float
    results: tuple[Result, ...]
    copy_gb_per_s: float
    wire_gb_per_s: float | None
    limit_gb_per_s: float | None
    doubts: tuple[str, ...]
    profiles: tuple[Profile, ...] = ()

    def algbw(self, result: Result) -> float:
        """Bytes by median time, in GB/s (10^9 bytes)."""
        return self.size / result.time_us.median / 1e3

    def busbw(self, result: Result) -> float:
        """The algbw times the collective's factor: comparable between rank counts."""
        return self.algbw(result) * self.busbw_factor

    def share(self, result: Result) -> float | None:
        """Return the busbw as a part of the measured limit."""
        limit = self.limit_gb_per_s
        return None if limit is None else self.busbw(result) / limit

    def ratio(self, result: Result) -> Spread:
        """Compare a result's time with the first one's: medians, and the spread of the rounds."""
        first = self.results[0]
        pairs = zip(result.round_us, first.round_us, strict=True)
        spread = Spread.of([theirs / ours for theirs, ours in pairs])
        return Spread(result.time_us.median / first.time_us.median, spread.p10, spread.p90)
