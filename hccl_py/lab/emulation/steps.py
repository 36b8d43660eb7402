"""Evaluates a record step by step: the network's time, the busiest wire, the calls."""

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hccl_py.lab.emulation.network import NEVER_NS
from hccl_py.lab.emulation.record import CallKind, Record, RecordedCollective, TimeSpan


class BusiestWire(NamedTuple):
    """The traffic of a step on its busiest wire."""

    name: str
    num_bytes: float
    busy_ms: float


class Steps(NamedTuple):
    """A job's steps without the first, whose start is unknown.

    Times are medians, which one step with a fault does not change. If only some steps have calls, a
    time is the mean of two medians, with and without calls, weighted by their numbers of steps.

    Attributes:
        num_steps: measured steps; 0: the numbers below are of the whole job.
        num_left_out: further steps, whose calls not all ranks reported.
        step_ms: time of a step; 0 without steps.
        network_ms: time of a step during which a call between nodes ran.
        wire: None without steps.
        calls: mean number of calls in a step, of the communicator of all ranks, without barriers.
        calls_ms: the network's time of these calls: the median of each kind times its number.
        num_transfers: mean number of receives from other nodes in a step; they are not simulated.
    """

    num_steps: int
    num_left_out: int
    step_ms: float
    network_ms: float
    wire: BusiestWire | None
    calls: dict[CallKind, float]
    calls_ms: float
    num_transfers: float


def steps_of(record: Record) -> Steps | None:
    """Evaluate the last attempt; None: no call between nodes was recorded."""
    whole, transfers = record.calls(), record.transfers()
    spans = [call.span for call in whole] + transfers
    if not spans:
        return None
    # The rank with the most steps is alive, also in a job that continues without others.
    all_ns = max(record.steps_ns.values(), key=len, default=[])
    ends_ns = all_ns[: bisect_right(all_ns, record.reported_until_ns())]
    measured = [not _is_in_doubt(record, *step) for step in pairwise(ends_ns)]
    count = sum(measured)
    if not count:
        ends_ns, measured = [0, NEVER_NS], [True]

    def is_measured(ended_ns: int) -> bool:
        step = bisect_left(ends_ns, ended_ns) - 1
        return 0 <= step < len(measured) and measured[step]

    kinds: defaultdict[CallKind, list[int]] = defaultdict(list)
    for call in _of_all_ranks(whole, record):
        if call.kind.num_bytes and is_measured(call.span.ended_ns):  # no barrier
            kinds[call.kind].append(call.span.ended_ns - call.span.begun_ns)
    num_transfers = sum(is_measured(one.ended_ns) for one in transfers)
    each = [pair for pair, counts in zip(pairwise(ends_ns), measured, strict=True) if counts]
    covered = [
        one for one, counts in zip(covered_ns(spans, ends_ns), measured, strict=True) if counts
    ]
    have_calls = [bool(one) for one in covered]
    return Steps(
        num_steps=count,
        num_left_out=max(0, len(all_ns) - 1) - count,
        step_ms=_typical_ms([end - begin for begin, end in each], have_calls) if count else 0.0,
        network_ms=_typical_ms(covered, have_calls),
        wire=_busiest(record, len(all_ns) - 1) if count else None,
        calls={kind: len(times) / max(1, count) for kind, times in kinds.items()},
        calls_ms=sum(
            statistics.median(times) * len(times) / max(1, count) for times in kinds.values()
        )
        / 1e6,
        num_transfers=num_transfers / max(1, count),
    )


def _is_in_doubt(record: Record, begun_ns: int, ended_ns: int) -> bool:
    """Return whether a dead rank may have made calls in this step that it did not report."""
    return any(begun_ns < died.ended_ns and died.begun_ns < ended_ns for died in record.deaths)


def _of_all_ranks(
    calls: Sequence[RecordedCollective], record: Record
) -> Iterator[RecordedCollective]:
    """Yield the calls in which all ranks took part that were alive when the call ended."""
    largest = max((call.size for call in calls), default=0)
    for call in calls:
        dead = sum(died.ended_ns <= call.span.ended_ns for died in record.deaths)
        if call.size >= largest - dead:
            yield call


def _busiest(record: Record, count: int) -> BusiestWire:
    wires = []
    for before, after in zip(record.counted[0], record.counted[-1], strict=True):
        way = "sends" if after.leaves else "receives"
        name = f"what node {after.from_node} {way}"
        if after.to_node >= 0:
            name = f"the link from node {after.from_node} to {after.to_node}"
        each = (after.num_bytes - before.num_bytes) / count
        wires.append(BusiestWire(name, each, 1e3 * each / after.bytes_per_s))
    return max(wires, key=lambda wire: wire.busy_ms)


def _typical_ms(times_ns: Sequence[int], have_calls: Sequence[bool]) -> float:
    """Add up the medians of steps with and without calls, each by its share of the steps."""
    total = 0.0
    for kind in (True, False):
        some = [one for one, has in zip(times_ns, have_calls, strict=True) if has is kind]
        total += len(some) / len(times_ns) * statistics.median(some) if some else 0.0
    return total / 1e6


def covered_ns(spans: Iterable[TimeSpan], ends_ns: Sequence[int]) -> list[int]:
    """Return how much of each step lies in at least one span."""
    merged: list[TimeSpan] = []
    for span in sorted(spans):
        if merged and span.begun_ns <= merged[-1].ended_ns:
            merged[-1] = TimeSpan(merged[-1].begun_ns, max(merged[-1].ended_ns, span.ended_ns))
        else:
            merged.append(span)
    totals, first = [], 0
    for begun_ns, ended_ns in pairwise(ends_ns):
        while first < len(merged) and merged[first].ended_ns <= begun_ns:
            first += 1
        total = 0
        for span in merged[first:]:
            if span.begun_ns >= ended_ns:
                break
            total += min(span.ended_ns, ended_ns) - max(span.begun_ns, begun_ns)
        totals.append(total)
    return totals
