"""How often and in which order the ranks are asked, and what comes of their times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hccl_py.bench.collective.analysis.limits import Limits
from hccl_py.bench.collective.analysis.trust import (
    Load,
    drift_doubts,
    load_doubts,
    spread_doubts,
)
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.messages import Checked
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.ranks import Ranks

_ROUND_S = 0.02
_BUDGET_S = 1.0
_MIN_ROUNDS, _MAX_ROUNDS = 10, 50
_MIN_CALLS, _MAX_CALLS = 2, 50_000
_CALIBRATION_S = 0.005
_SAMPLE_S = 0.1
_MIN_SAMPLE, _MAX_SAMPLE = 10, 1000

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of a number of values."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize values, interpolating between neighbours."""
        p10, median, p90 = np.percentile(values, (10, 50, 90))
        return cls(float(median), float(p10), float(p90))


@dataclass(frozen=True)
class Percentiles:
    """Of single calls, on all ranks; with --measure latency on the slowest rank of each call."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Times) -> Percentiles:
        """Summarize the calls that are numbers."""
        return cls(*map(float, np.nanpercentile(values, (50, 90, 99, 100))))


@dataclass
class Result:
    """One contender at one size."""

    contender: str
    wrong: int | None
    """None: nothing was checked."""
    calls_per_round: int
    round_us: list[float] = field(default_factory=list)
    """Time of a call in each round."""
    rank_us: list[list[float]] = field(default_factory=list)
    """For each round the time of a call on each rank; not a number where it takes no part."""
    call_us: list[Times] = field(default_factory=list)
    """Times of single calls."""

    @property
    def time_us(self) -> Spread:
        """Time of one call."""
        return Spread.of(self.round_us)

    @property
    def calls_us(self) -> Percentiles | None:
        """Times of single calls; None: they are not known."""
        if not self.call_us:
            return None
        return Percentiles.of(np.concatenate([times.ravel() for times in self.call_us]))

    @property
    def ranks_us(self) -> list[float]:
        """Median over the rounds, for each rank; empty: they are not known."""
        return [float(time) for time in np.median(self.rank_us, axis=0)] if self.rank_us else []

    @property
    def rank_spread(self) -> float | None:
        """From the fastest to the slowest rank, as a part of their mean; None: it is not known."""
        if not self.rank_us:
            return None
        times = np.array(self.ranks_us)
        return float((np.nanmax(times) - np.nanmin(times)) / np.nanmean(times))


@dataclass(frozen=True)
class Profile:
    """The parts of one call on one rank, in us."""

    late: float
    copy: float
    reduce: float
    wire: float
    transit: float
    python: float
    total: float


@dataclass(frozen=True)
class Row:
    """One size; `results` has hccl first, then what it is compared with."""

    size: int
    count: int
    busbw_factor: float
    results: tuple[Result, ...]
    limits: Limits
    copy_gb_per_s: float
    doubts: tuple[str, ...]
    """Why these results cannot be trusted."""
    profiles: tuple[Profile, ...] = ()
    """Of the first contender, one for each rank, with --profile."""

    def algbw(self, result: Result) -> float:
        """Bytes by median time, in GB/s (10^9 bytes)."""
        return self.size / result.time_us.median / 1e3

    def busbw(self, result: Result) -> float:
        """The algbw times the collective's factor: comparable between rank counts."""
        return self.algbw(result) * self.busbw_factor

    def share(self, result: Result) -> float | None:
        """The part of the measured limit that was reached."""
        return self.limits.share(self.algbw(result), self.busbw(result), self.copy_gb_per_s)

    def ratio(self, result: Result) -> Spread:
        """Compare a result's time with the first one's: medians, and the spread of the rounds."""
        first = self.results[0]
        pairs = zip(result.round_us, first.round_us, strict=True)
        spread = Spread.of([theirs / ours for theirs, ours in pairs])
        return Spread(result.time_us.median / first.time_us.median, spread.p10, spread.p90)


def measure(ranks: Ranks, options: Options, names: Sequence[str]) -> Iterator[Row]:
    """Check and time every size; yields its row as soon as it is done."""
    limits = Limits(ranks, options)
    for size in options.sizes:
        yield _row(ranks, options, names, limits, size)


def _row(ranks: Ranks, options: Options, names: Sequence[str], limits: Limits, size: int) -> Row:
    case, n = CASES[options.collective], options.world_size
    count = case.count(size, options.dtype, n)
    call = Call(
        n,
        options.root,
        options.reduce_op,
        options.dtype,
        count,
        in_place=options.in_place,
        pairs=options.pairs,
    )
    size = case.num_bytes(count, options.dtype, n)
    at = f"at {size} B of {options.collective}"
    copy_before = limits.copy_gb_per_s(size)
    ranks.ask("prepare", options.collective, call, what=f"preparing buffers {at}")
    results = []
    for index, name in enumerate(names):
        wrong = _check(ranks, options, index, f"checking {name} {at}")
        calls = _calls_per_round(ranks, options, index, f"warming up {name} {at}")
        results.append(Result(name, wrong, calls))
    before = Load.now(ranks.pids)
    _time(ranks, options, results, at)
    doubts = load_doubts(before, Load.now(ranks.pids))
    if options.measure == "bw":
        for index, result in enumerate(results):
            _sample(
                ranks, options, index, result, f"timing single calls of {result.contender} {at}"
            )
    copy_after = limits.copy_gb_per_s(size)
    doubts += drift_doubts(copy_before, copy_after)
    for result in results:
        num_calls = len(result.round_us) * result.calls_per_round
        of = f"{result.contender}: " if len(results) > 1 else ""
        doubts += [of + doubt for doubt in spread_doubts(result.round_us, num_calls)]
    copied = max(copy_before, copy_after)
    return Row(size, count, case.busbw_factor(n), tuple(results), limits, copied, tuple(doubts))


def _check(ranks: Ranks, options: Options, index: int, what: str) -> int | None:
    """Count wrong elements of as many checked calls as wanted."""
    if not options.checks:
        return None
    return sum(
        count_wrong(ranks.ask("check", index, what=what), options) for _ in range(options.checks)
    )


def count_wrong(checked: Sequence[Checked], options: Options) -> int:
    """Add up wrong elements; of a barrier, the ranks that left before the last one came."""
    if options.collective == "barrier":
        last_ns = max(rank.entered_ns for rank in checked)
        return sum(rank.left_ns < last_ns for rank in checked)
    return sum(rank.num_wrong for rank in checked)


def _calls_per_round(ranks: Ranks, options: Options, index: int, what: str) -> int:
    """Enough calls for one round, found by doubling; this also warms the contender up."""
    if options.iters is not None:
        ranks.ask("time", index, 1, _warmup(options, 1), what=what)
        return -(-options.iters // min(options.iters, _MIN_ROUNDS))
    calls = 1
    while True:
        call_s = float(np.nanmean(ranks.ask("time", index, calls, 0, what=what)))
        if call_s * calls >= _CALIBRATION_S or calls >= _MAX_CALLS:
            return min(_MAX_CALLS, max(_MIN_CALLS, round(_ROUND_S / call_s)))
        calls *= 2


def _time(ranks: Ranks, options: Options, results: Sequence[Result], at: str) -> None:
    """Fill in the rounds of all contenders, in turns, so that what disturbs one disturbs all."""
    end = time.monotonic() + _BUDGET_S * len(results)
    for number in range(_MAX_ROUNDS):
        if options.iters is not None:
            if number >= min(options.iters, _MIN_ROUNDS):
                return
        elif number >= _MIN_ROUNDS and time.monotonic() > end:
            return
        for index, result in enumerate(results):
            _round(ranks, options, index, result, f"timing {result.contender} {at}")


OVER_RANKS = (lambda times: times[0], np.nanmean, np.nanmin, np.nanmax)
"""By the value of --average."""


def _round(ranks: Ranks, options: Options, index: int, result: Result, what: str) -> None:
    """Run one round and add its times to the result."""
    calls, warmup = result.calls_per_round, _warmup(options, result.calls_per_round)
    if options.measure == "latency":
        # A ping and its answer keep step by themselves.
        apart = CASES[options.collective].messages == 1
        times = np.array(ranks.ask("sample", index, calls, warmup, apart, what=what)) * 1e6
        slowest = np.nanmax(times, axis=0)
        result.call_us.append(slowest)
        result.round_us.append(float(np.median(slowest)))
        result.rank_us.append(list(np.median(times, axis=1)))
        return
    rank_us = np.array(ranks.ask("time", index, calls, warmup, what=what)) * 1e6
    result.rank_us.append(list(rank_us))
    result.round_us.append(float(OVER_RANKS[options.average](rank_us)))


def _sample(ranks: Ranks, options: Options, index: int, result: Result, what: str) -> None:
    """Time single calls, back to back, for the percentiles."""
    calls = options.iters or round(_SAMPLE_S * 1e6 / result.time_us.median)
    calls = min(_MAX_SAMPLE, calls if options.iters else max(_MIN_SAMPLE, calls))
    times = ranks.ask("sample", index, calls, _warmup(options, calls), False, what=what)
    result.call_us.append(np.array(times) * 1e6)


def _warmup(options: Options, calls: int) -> int:
    return max(1, calls // 10) if options.warmup is None else options.warmup
