"""What the ranks of an emulated job reported, and what it says of a step.

All ranks are on one machine, so their times are of one clock. The network's time of a call begins
when the last of its ranks has come and ends when the last has its result: what a call waits for a
late rank is not the network's.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_NEVER_NS = 1 << 63

Traffic = tuple[int, int, bool, int, float]
"""Of a wire, as `EmulatedNetwork.traffic` returns it."""


class Kind(NamedTuple):
    """Calls that differ in nothing."""

    collective: str
    num_bytes: int  # the larger buffer of a rank


class Span(NamedTuple):
    """From when the last rank had come until the last had its result."""

    begun_ns: int
    ended_ns: int


class Wire(NamedTuple):
    """What a step sent through the wire that it kept busy longest."""

    name: str
    num_bytes: float
    busy_ms: float


class Steps(NamedTuple):
    """A job's steps, the first left out: nobody knows when it began.

    Attributes:
        num_steps: how many were measured; 0: all that follows is of the whole job.
        num_left_out: later ones, whose calls were not reported by all ranks.
        median_ms: of a step; 0 without steps.
        network_ms: of a step, in which a call between nodes was under way; the median.
        wire: None without steps.
        calls: of a step, those of the communicator of all ranks, barriers left out; the mean.
        calls_ms: the network's time of these; the median.
        num_transfers: receives from other nodes in a step, which nobody simulates; the mean.
    """

    num_steps: int
    num_left_out: int
    median_ms: float
    network_ms: float
    wire: Wire | None
    calls: dict[Kind, float]
    calls_ms: float
    num_transfers: float


@dataclass
class _Call:
    """One collective; transfers are known by their receiver alone."""

    kind: Kind
    size: int  # of its communicator
    nodes: set[int] = field(default_factory=set)
    num_reports: int = 0
    span: Span = Span(0, 0)


class Record:
    """Collects; `steps` sums up."""

    def __init__(self, traffic: Callable[[], Sequence[Traffic]]) -> None:
        self._traffic = traffic
        self._steps_ns: defaultdict[int, list[int]] = defaultdict(list)
        self._counted: list[Sequence[Traffic]] = []  # at the first and at the last step
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._nodes: dict[tuple[str, int], int] = {}  # by communicator and rank
        self._until_ns: dict[tuple[str, int, int], int] = {}  # by communicator, rank and size
        self._transfers: list[tuple[str, int, int, int, int]] = []

    def note_step(self, rank: int, step: int, at_ns: int) -> None:
        """Note that a rank has finished a step; one that it had before begins a new attempt."""
        if step <= len(self._steps_ns[rank]):
            self._steps_ns.clear()
            self._until_ns.clear()
            self._counted.clear()
        self._steps_ns[rank].append(at_ns)
        if rank == min(self._steps_ns):
            self._counted = [*self._counted[:1], self._traffic()]

    def note_calls(
        self, communicator: tuple[Any, ...], node: int, calls: Iterable[Sequence[Any]]
    ) -> None:
        """Note calls that a rank has finished, as `observe/emulated_calls.py` reports them."""
        name, rank, size = communicator
        self._nodes[name, rank] = node
        for number, collective, num_bytes, peer, begun_ns, ended_ns in calls:
            if collective == "recv":
                self._transfers.append((name, rank, peer, begun_ns, ended_ns))
            if peer is not None:
                continue
            kind = Kind(collective, num_bytes)
            call = self._calls.setdefault((name, number), _Call(kind, size))
            call.nodes.add(node)
            call.num_reports += 1
            call.span = Span(max(call.span.begun_ns, begun_ns), max(call.span.ended_ns, ended_ns))

    def note_reported(self, communicator: tuple[Any, ...], until_ns: int) -> None:
        """Note that a rank has reported all its calls that ended before a time."""
        name, rank, size = communicator
        self._until_ns[name, rank, size] = until_ns

    def _reported_until_ns(self) -> int:
        """Return until when all ranks have reported all calls; a killed one lacks its last."""
        sizes = {name: size for name, _, size in self._until_ns}
        return min(
            (
                self._until_ns.get((name, rank, size), 0)
                for name, size in sizes.items()
                if len({node for (of, _), node in self._nodes.items() if of == name}) > 1
                for rank in range(size)
            ),
            default=0,
        )

    def steps(self) -> Steps | None:
        """Sum up the last attempt; None: no call between nodes was recorded."""
        all_ns = self._steps_ns[min(self._steps_ns)] if self._steps_ns else []
        ends_ns = all_ns[: bisect_right(all_ns, self._reported_until_ns())]
        count = max(0, len(ends_ns) - 1)
        if not count:
            ends_ns = [0, _NEVER_NS]
        whole = [
            call
            for call in self._calls.values()
            if call.num_reports == call.size and len(call.nodes) > 1
        ]
        transfers = [
            Span(begun_ns, ended_ns)
            for name, rank, peer, begun_ns, ended_ns in self._transfers
            if self._nodes.get((name, peer)) != self._nodes[name, rank]
        ]
        largest = max((call.size for call in whole), default=0)
        world = [
            call
            for call in whole
            if call.size == largest
            and call.kind.num_bytes  # no barrier
            and ends_ns[0] < call.span.ended_ns <= ends_ns[-1]
        ]
        spans = [call.span for call in whole] + transfers
        if not spans:
            return None
        kinds = Counter(call.kind for call in world)
        num_transfers = sum(ends_ns[0] < one.ended_ns <= ends_ns[-1] for one in transfers)
        return Steps(
            num_steps=count,
            num_left_out=max(0, len(all_ns) - 1) - count,
            median_ms=_median_ms(later - earlier for earlier, later in pairs(ends_ns) if count),
            network_ms=_median_ms(covered_ns(spans, ends_ns)),
            wire=self._busiest(len(all_ns) - 1) if count else None,
            calls={kind: number / max(1, count) for kind, number in kinds.items()},
            calls_ms=_median_ms(lengths_ns([call.span for call in world], ends_ns)),
            num_transfers=num_transfers / max(1, count),
        )

    def _busiest(self, count: int) -> Wire:
        before, after = self._counted[0], self._counted[-1]
        wires = []
        for (node, to, leaves, begun, _), (*_, num_bytes, rate) in zip(before, after, strict=True):
            way = "sends" if leaves else "receives"
            name = f"what node {node} {way}" if to < 0 else f"the link from node {node} to {to}"
            each = (num_bytes - begun) / count
            wires.append(Wire(name, each, 1e3 * each / rate))
        return max(wires, key=lambda wire: wire.busy_ms)


def _median_ms(times_ns: Iterable[int]) -> float:
    found = list(times_ns)
    return statistics.median(found) / 1e6 if found else 0.0


def lengths_ns(spans: Iterable[Span], ends_ns: Sequence[int]) -> list[int]:
    """Add up, for each step, the spans that ended in it; `ends_ns` begins where the first does."""
    totals = [0] * (len(ends_ns) - 1)
    for span in spans:
        totals[bisect_left(ends_ns, span.ended_ns) - 1] += span.ended_ns - span.begun_ns
    return totals


def covered_ns(spans: Iterable[Span], ends_ns: Sequence[int]) -> list[int]:
    """Return how much of each step lies in one span or in several."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.begun_ns <= merged[-1].ended_ns:
            merged[-1] = Span(merged[-1].begun_ns, max(merged[-1].ended_ns, span.ended_ns))
        else:
            merged.append(span)
    totals, first = [], 0
    for begun_ns, ended_ns in pairs(ends_ns):
        while first < len(merged) and merged[first].ended_ns <= begun_ns:
            first += 1
        total = 0
        for span in merged[first:]:
            if span.begun_ns >= ended_ns:
                break
            total += min(span.ended_ns, ended_ns) - max(span.begun_ns, begun_ns)
        totals.append(total)
    return totals


def pairs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Go through neighbours."""
    return zip(values[:-1], values[1:], strict=True)
