"""How often and in which order the ranks are asked, and what comes of their times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

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


@dataclass
class Result:
    """One contender at one size."""

    contender: str
    wrong: int
    calls_per_round: int
    round_us: list[float] = field(default_factory=list)
    """For each round the mean over its calls and over the ranks."""

    @property
    def time_us(self) -> Spread:
        """Time of one call."""
        return Spread.of(self.round_us)


@dataclass(frozen=True)
class Row:
    """One size; `results` has hccl first, then what it is compared with."""

    size: int
    count: int
    busbw_factor: float
    results: tuple[Result, ...]

    def algbw(self, result: Result) -> float:
        """Bytes by median time, in GB/s (10^9 bytes)."""
        return self.size / result.time_us.median / 1e3

    def busbw(self, result: Result) -> float:
        """The algbw times the collective's factor: comparable between rank counts."""
        return self.algbw(result) * self.busbw_factor

    def ratio(self, result: Result) -> Spread:
        """Compare a result's time with the first one's: medians, and the spread of the rounds."""
        first = self.results[0]
        pairs = zip(result.round_us, first.round_us, strict=True)
        spread = Spread.of([theirs / ours for theirs, ours in pairs])
        return Spread(result.time_us.median / first.time_us.median, spread.p10, spread.p90)


def measure(ranks: Ranks, options: Options, names: Sequence[str]) -> Iterator[Row]:
    """Check and time every size; yields its row as soon as it is done."""
    case, n = CASES[options.op], options.world_size
    for size in options.sizes:
        count = case.count(size, options.dtype, n)
        call = Call(n, options.root, options.reduce_op, options.dtype, count)
        size = case.num_bytes(count, options.dtype, n)
        at = f"at {size} B of {options.op}"
        ranks.ask("prepare", options.op, call, what=f"preparing buffers {at}")
        results = []
        for index, name in enumerate(names):
            wrong = count_wrong(ranks.ask("check", index, what=f"checking {name} {at}"), options)
            calls = _calls_per_round(ranks, options, index, f"warming up {name} {at}")
            results.append(Result(name, wrong, calls))
        _time(ranks, options, results, at)
        yield Row(size, count, case.busbw_factor(n), tuple(results))


def count_wrong(checked: Sequence[Checked], options: Options) -> int:
    """Add up wrong elements; of a barrier, the ranks that left before the last one came."""
    if options.op == "barrier":
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
        call_s = float(np.mean(ranks.ask("time", index, calls, 0, what=what)))
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
            calls = result.calls_per_round
            warmup = _warmup(options, calls)
            what = f"timing {result.contender} {at}"
            seconds = ranks.ask("time", index, calls, warmup, what=what)
            result.round_us.append(float(np.mean(seconds)) * 1e6)


def _warmup(options: Options, calls: int) -> int:
    return max(1, calls // 10) if options.warmup is None else options.warmup
