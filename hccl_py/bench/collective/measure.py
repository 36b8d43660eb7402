"""The number and order of requests to the ranks, and the evaluation of their times."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hccl_py.bench.collective.analysis.limits import Limits
from hccl_py.bench.collective.analysis.trust import (
    Load,
    drift_doubts,
    load_doubts,
    slow_call_doubts,
    spread_doubts,
)
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.rank import (
    Checked,
    check,
    cpu_of_calls,
    prepare,
    time_calls,
    time_each,
)
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.bench.collective.results import Result, Row
from hccl_py.quantities import busbw_factor

_ROUND_S = 0.02
_BUDGET_S = 1.0
_MIN_ROUNDS, _MAX_ROUNDS = 10, 50
_MIN_CALLS, _MAX_CALLS = 2, 50_000
_SAMPLE_S = 0.1
_MIN_SAMPLE, _MAX_SAMPLE = 10, 1000
_OVER_RANKS = (lambda times: times[0], np.nanmean, np.nanmin, np.nanmax)
"""By the value of --average."""


def measure(ranks: Ranks, options: Options, names: Sequence[str]) -> Iterator[Row]:
    """Check and time every size; yields its row as soon as it is done."""
    limits = Limits(ranks, options)
    for size in options.sizes:
        yield _row(ranks, options, names, limits, size)


def calls_of_round(call_s: Callable[[int], float], round_s: float, most: int) -> int:
    """Return how many calls fill a round; found by doubling until they fill a quarter of it.

    Args:
        call_s: makes so many calls on all ranks; returns the seconds of one.
        round_s: length of a round in seconds.
        most: upper bound of the calls.
    """
    calls = 1
    while (each_s := call_s(calls)) * calls < round_s / 4 and calls < most:
        calls *= 2
    return max(1, min(most, round(round_s / each_s)))


def _row(ranks: Ranks, options: Options, names: Sequence[str], limits: Limits, size: int) -> Row:
    case, call = CASES[options.collective], options.call(size)
    size = case.num_bytes(call.count, call.dtype, call.world_size)
    at = f"at {size} B of {call.op}"
    copy_before = limits.copy_gb_per_s(size)
    ranks.ask(prepare, call, what=f"preparing buffers {at}")
    results = []
    for index, name in enumerate(names):
        wrong = _check(ranks, options, index, f"checking {name} {at}")
        calls = _calls_per_round(ranks, options, index, f"warming up {name} {at}")
        results.append(Result(name, wrong, calls))
    before = Load.now(ranks.pids)
    _time(ranks, options, results, at)
    doubts = load_doubts(before, Load.now(ranks.pids))
    for index, result in enumerate(results):
        what = f"measuring the CPU time of {result.contender} {at}"
        used = ranks.ask(cpu_of_calls, index, result.calls_per_round, what=what)
        result.cpu_us = [each_s * 1e6 for each_s in used]
    if options.measure == "bw":
        for index, result in enumerate(results):
            what = f"timing single calls of {result.contender} {at}"
            _sample(ranks, options, index, result, what)
    copy_after = limits.copy_gb_per_s(size)
    doubts += drift_doubts(copy_before, copy_after)
    for result in results:
        num_calls = len(result.round_us) * result.calls_per_round
        of = f"{result.contender}: " if len(results) > 1 else ""
        found = spread_doubts(result.round_us, num_calls)
        if result.call_us and num_calls >= _MIN_CALLS * _MIN_ROUNDS:
            found += slow_call_doubts(result.time_us.median, result.calls_us["p50"])
        doubts += [of + doubt for doubt in found]
    factor, copied = busbw_factor(call.op, call.world_size), max(copy_before, copy_after)
    speeds = copied, limits.wire_gb_per_s, limits.busbw_gb_per_s(copied)
    return Row(size, call.count, factor, tuple(results), *speeds, tuple(doubts))


def _check(ranks: Ranks, options: Options, index: int, what: str) -> int | None:
    """Count wrong elements over the checked calls; None if there are none."""
    if not options.checks:
        return None
    checked = (ranks.ask(check, index, what=what) for _ in range(options.checks))
    return sum(count_wrong(each, options.collective) for each in checked)


def count_wrong(checked: Sequence[Checked], collective: str) -> int:
    """Add up wrong elements; for a barrier, the ranks that left before the last one entered."""
    if collective == "barrier":
        last_ns = max(rank.entered_ns for rank in checked)
        return sum(rank.left_ns < last_ns for rank in checked)
    return sum(rank.num_wrong for rank in checked)


def _calls_per_round(ranks: Ranks, options: Options, index: int, what: str) -> int:
    """Return how many calls fill one round; finding it also warms the contender up."""
    if options.iters is not None:
        ranks.ask(time_calls, index, 1, _warmup(options, 1), what=what)
        return -(-options.iters // min(options.iters, _MIN_ROUNDS))

    def call_s(calls: int) -> float:
        return float(np.nanmean(ranks.ask(time_calls, index, calls, 0, what=what)))

    return max(_MIN_CALLS, calls_of_round(call_s, _ROUND_S, _MAX_CALLS))


def _time(ranks: Ranks, options: Options, results: Sequence[Result], at: str) -> None:
    """Time the rounds of all contenders in turns, so that a disturbance affects all of them."""
    end = time.monotonic() + _BUDGET_S * len(results)
    for number in range(_MAX_ROUNDS):
        if options.iters is not None:
            if number >= min(options.iters, _MIN_ROUNDS):
                return
        elif number >= _MIN_ROUNDS and time.monotonic() > end:
            return
        for index, result in enumerate(results):
            _round(ranks, options, index, result, f"timing {result.contender} {at}")


def _round(ranks: Ranks, options: Options, index: int, result: Result, what: str) -> None:
    """Run one round and add its times to the result."""
    calls, warmup = result.calls_per_round, _warmup(options, result.calls_per_round)
    if options.measure == "latency":
        # A ping-pong needs no barrier: each message waits for the one before.
        apart = CASES[options.collective].messages == 1
        times = np.array(ranks.ask(time_each, index, calls, warmup, apart, what=what)) * 1e6
        slowest = np.nanmax(times, axis=0)
        result.call_us.append(slowest)
        result.round_us.append(float(np.median(slowest)))
        result.rank_us.append(list(np.median(times, axis=1)))
        return
    rank_us = np.array(ranks.ask(time_calls, index, calls, warmup, what=what)) * 1e6
    result.rank_us.append(list(rank_us))
    result.round_us.append(float(_OVER_RANKS[options.average](rank_us)))


def _sample(ranks: Ranks, options: Options, index: int, result: Result, what: str) -> None:
    """Time single calls, back to back, for the percentiles."""
    calls = options.iters or max(_MIN_SAMPLE, round(_SAMPLE_S * 1e6 / result.time_us.median))
    calls = min(_MAX_SAMPLE, calls)
    times = ranks.ask(time_each, index, calls, _warmup(options, calls), False, what=what)
    result.call_us.append(np.array(times) * 1e6)


def _warmup(options: Options, calls: int) -> int:
    return max(1, calls // 10) if options.warmup is None else options.warmup
