"""The reports of an emulated job's ranks. `steps.py` evaluates them.

All ranks are on one machine, so their times are of one clock. The network's time of a call begins
when its last rank has entered it and ends when the last rank has its result. The wait for a late
rank does not count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hccl_py.lab._lab import WireTraffic
from hccl_py.lab.emulation.network import NEVER_NS

CommunicatorRank = tuple[str, int, int]
"""A communicator, a rank in it, and its size."""


class CallKind(NamedTuple):
    """Calls of one collective and size."""

    collective: str
    num_bytes: int  # the larger buffer of a rank


class TimeSpan(NamedTuple):
    """A time with begin and end; of a collective, the network's time."""

    begun_ns: int
    ended_ns: int


@dataclass
class RecordedCollective:
    """One collective call."""

    kind: CallKind
    size: int  # of its communicator
    nodes: set[int] = field(default_factory=set)
    num_reports: int = 0
    span: TimeSpan = TimeSpan(0, 0)


class Record:
    """Collects the reports of the ranks.

    Attributes:
        steps_ns: by rank, the end of each step.
        counted: traffic of the wires at the first and at the last step.
        deaths: for each process that ended without a last report, from its latest report to its
            end.
    """

    def __init__(self, traffic: Callable[[], Sequence[WireTraffic]]) -> None:
        self.steps_ns: defaultdict[int, list[int]] = defaultdict(list)
        self.counted: list[Sequence[WireTraffic]] = []
        self.deaths: list[TimeSpan] = []
        self._traffic = traffic
        self._calls: dict[tuple[Any, ...], RecordedCollective] = {}
        self._nodes: dict[tuple[str, int], int] = {}  # by communicator and rank
        self._until_ns: dict[CommunicatorRank, int] = {}
        self._ended: set[CommunicatorRank] = set()
        # Receives: communicator, rank, peer and time. The node of a peer may become known later.
        self._transfers: list[tuple[str, int, int, TimeSpan]] = []
        self._counting: int | None = None  # the rank at whose steps the wires are read

    def note_step(self, rank: int, step: int, at_ns: int) -> None:
        """Note that a rank has finished a step; a step number seen before begins a new attempt."""
        if step <= len(self.steps_ns[rank]):
            self.steps_ns.clear()
            self._until_ns.clear()
            self.counted.clear()
            self.deaths.clear()
            self._ended.clear()
            self._counting = None
        self.steps_ns[rank].append(at_ns)
        if self._counting is None:
            self._counting = rank
        if rank == self._counting:
            self.counted = [*self.counted[:1], self._traffic()]

    def note_calls(
        self, member: CommunicatorRank, node: int, calls: Iterable[Sequence[Any]]
    ) -> None:
        """Note calls that a rank has finished, as `rank.py` reports them."""
        name, rank, size = member
        self._nodes[name, rank] = node
        for number, collective, num_bytes, peer, begun_ns, ended_ns in calls:
            if collective == "recv":
                span = TimeSpan(begun_ns, ended_ns)
                self._transfers.append((name, rank, peer, span))
            if peer is not None:
                continue
            kind = CallKind(collective, num_bytes)
            call = self._calls.setdefault((name, number), RecordedCollective(kind, size))
            call.nodes.add(node)
            call.num_reports += 1
            call.span = TimeSpan(
                max(call.span.begun_ns, begun_ns), max(call.span.ended_ns, ended_ns)
            )

    def note_reported(self, member: CommunicatorRank, until_ns: int) -> None:
        """Note that a rank has reported all its calls that ended before a time."""
        self._until_ns[member] = until_ns

    def note_end(self, rank: int | None, members: Iterable[CommunicatorRank], at_ns: int) -> None:
        """Note the end of a rank's process, which was in the communicators of `members`.

        A killed process lacks its last reports, and the others may continue without it.
        """
        ended = set(members)
        until_ns = min((self._until_ns.pop(one, 0) for one in ended), default=NEVER_NS)
        self._ended |= ended
        if until_ns < NEVER_NS:
            self.deaths.append(TimeSpan(until_ns, at_ns))
            self.steps_ns.pop(-1 if rank is None else rank, None)
        if rank == self._counting:
            self._counting = None

    def reported_until_ns(self) -> int:
        """Return until when all live ranks have reported all calls."""
        sizes = {name: size for name, _, size in self._until_ns}
        return min(
            (
                self._until_ns.get((name, rank, size), 0)
                for name, size in sizes.items()
                if len({node for (of, _), node in self._nodes.items() if of == name}) > 1
                for rank in range(size)
                if (name, rank, size) not in self._ended
            ),
            default=NEVER_NS if self._ended else 0,
        )

    def calls(self) -> list[RecordedCollective]:
        """Return the collectives between nodes that all their ranks have reported."""
        return [
            call
            for call in self._calls.values()
            if call.num_reports == call.size and len(call.nodes) > 1
        ]

    def transfers(self) -> list[TimeSpan]:
        """Return the receives from other nodes."""
        return [
            span
            for name, rank, peer, span in self._transfers
            if self._nodes.get((name, peer)) != self._nodes[name, rank]
        ]
