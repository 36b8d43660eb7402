"""Speeds between all nodes: the links that are slow, and two tables.

The rule is that of `hccl-bench --validate`: a link is slow that stays below 95 % of the median of
all links by more than its noise, twice.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from hccl_py.launcher.preflight.finding import Finding
from hccl_py.launcher.preflight.judge.nodes import Nodes
from hccl_py.launcher.preflight.node.probe import PairResult

_LEAST_SHARE = 0.95
_TYPICAL = 3
_MOST_COLUMNS = 16

Link = tuple[int, int]
"""Source and target."""

Speeds = Mapping[Link, PairResult]
"""Of the links that could be measured."""


def _suspects(speeds: Speeds) -> list[Link]:
    """Return the links that look slow."""
    rates = {link: _rate(one) for link, one in speeds.items()}
    median = statistics.median(rates.values()) if rates else 0.0
    return [link for link, rate in rates.items() if rate < _LEAST_SHARE * median]


def second_looks(speeds: Speeds) -> list[Link]:
    """Return the links to measure again: those that look slow, and some near the median."""
    slow = _suspects(speeds)
    median = statistics.median(map(_rate, speeds.values())) if slow else 0.0
    others = sorted(speeds.keys() - set(slow), key=lambda link: abs(_rate(speeds[link]) - median))
    return [*slow, *others[:_TYPICAL]] if slow else []


def slow_findings(nodes: Nodes, first: Speeds, again: Speeds) -> Iterator[Finding]:
    """Judge the links that looked slow by the second looks at them and at the others."""
    slow = [link for link in _suspects(first) if link in again]
    reference = [rate for link in again if link not in slow for rate in again[link]["gb_per_s"]]
    median = statistics.median(map(_rate, first.values()))
    # What slows all links down now, as another program does, is no fault of one of them.
    median = min(median, statistics.median(reference)) if reference else median
    for source, target in slow:
        looks = again[source, target]["gb_per_s"]
        rate = statistics.median(looks)
        if rate < _LEAST_SHARE * median - math.hypot(_noise(looks), _noise(reference)):
            sends = f"sends {rate:.2f} GB/s to {nodes.name(target)}"
            name = nodes.facts[source]["paths"][0][0] or "DEV"
            remedy = f"ethtool {name} and ip -s link show {name}, here and there: speed, errors"
            what = f"{sends}, the median of links is {median:.2f}"
            yield Finding(source, "warning", what, remedy)


def tables(num_nodes: int, speeds: Speeds) -> str:
    """Render bandwidth and latency from row to column; of many nodes, only the spread."""
    return "\n".join(
        [
            _table("bandwidth, GB/s", num_nodes, speeds, lambda one: _rate(one), ".2f"),
            _table("round trip, us", num_nodes, speeds, lambda one: one["latency_us"], ".0f"),
        ]
    )


def _table(
    title: str, n: int, speeds: Speeds, value: Callable[[PairResult], float], form: str
) -> str:
    known = {link: value(one) for link, one in speeds.items()}
    if n > _MOST_COLUMNS and known:
        low, median, high = (
            min(known.values()),
            statistics.median(known.values()),
            max(known.values()),
        )
        return f"{title}: {low:{form}} to {high:{form}}, median {median:{form}}, {len(known)} links"
    lines = [f"{title}, from row to column", " " * 5 + "".join(f"{to:8}" for to in range(n))]
    for source in range(n):
        cells = [known.get((source, target)) for target in range(n)]
        lines.append(
            f"{source:5}"
            + "".join(f"{cell:8{form}}" if cell is not None else f"{'-':>8}" for cell in cells)
        )
    return "\n".join(lines)


def _rate(one: PairResult) -> float:
    return statistics.median(one["gb_per_s"])


def _noise(looks: Sequence[float]) -> float:
    """Half of the span from the 10th to the 90th percentile."""
    if len(looks) < 2:
        return 0.0
    deciles = statistics.quantiles(looks, n=10, method="inclusive")
    return (deciles[-1] - deciles[0]) / 2
