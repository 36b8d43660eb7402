"""The reports of a communicator's ranks, and how a diagnosis names ranks, calls and lines."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from hccl_py.diagnosis.record import Diagnosis, Failure, LoggedCall, Report
from hccl_py.fingerprint import describe, without_number
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import Absence

Call = tuple[int, int]
"""Number and fingerprint of a call; 0, 0: none was under way."""


@dataclass(frozen=True)
class Reports:
    """All reports of a communicator, and why the other ranks sent none."""

    by_rank: Mapping[int, Report]
    absent: Mapping[int, Absence]
    processes: Sequence[tuple[str, int]]  # host and pid of every rank
    nodes: Sequence[Sequence[int]] = ()  # the ranks of each

    def silent_node(self, rank: int) -> Set[int]:
        """Return the ranks of its node if none of them has reported; else an empty set."""
        node = next((set(node) for node in self.nodes if rank in node), set())
        return node if node.isdisjoint(self.by_rank) else set()

    def stopped(self) -> Set[int]:
        """Return the ranks that a signal holds, as far as a rank of their node has reported."""
        return {rank for one in self.by_rank.values() for rank in one.stopped}

    def failures(self, *causes: Cause) -> dict[int, Failure]:
        """Return the failures with one of these causes, by the rank that observed them."""
        return {
            rank: one.failure
            for rank, one in sorted(self.by_rank.items())
            if one.failure is not None and one.failure.cause in causes
        }

    def first_call(self, failures: Iterable[Failure]) -> Call:
        """Return the first call that could not end."""
        calls = [(one.sequence, one.call) for one in failures if one.sequence and one.call]
        under_way = [one.progress for one in self.by_rank.values()]
        calls = calls or [(one.sequence, one.fingerprint) for one in under_way if one.sequence]
        sequence, fingerprint = min(calls, default=(0, 0))
        return sequence, without_number(fingerprint)

    def name(self, *some: int) -> str:
        """Name ranks with host and process."""
        known = [rank for rank in some if 0 <= rank < len(self.processes)]
        if not known:
            return "a rank"
        named = [f"{rank} (host {{}}, pid {{}})".format(*self.processes[rank]) for rank in known]
        return f"rank{'s' * (len(named) > 1)} {listing(named)}"

    def diagnosis(
        self,
        cause: Cause,
        rank: int | None,
        text: str,
        call: Call = (0, 0),
        also: tuple[bytes, ...] = (),
    ) -> Diagnosis:
        """Put the name of the call before the text, and add host and pid of the rank."""
        sequence, fingerprint = call
        if sequence and fingerprint:
            text = f"{describe(fingerprint)} number {sequence}: {text}"
        if rank is None or not 0 <= rank < len(self.processes):
            return Diagnosis(cause, text, None, None, None, sequence, fingerprint, also)
        return Diagnosis(cause, text, rank, *self.processes[rank], sequence, fingerprint, also)


def listing(names: Sequence[str]) -> str:
    """Join names: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers: Iterable[int]) -> str:
    """Name ranks by their numbers: `rank 2`, `ranks 0-3, 7`."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 3 else [str(number) for number in run]
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(parts)}"


def sites(calls: Mapping[int, LoggedCall | None]) -> str:
    """Return where ranks made a call, if it is known: ` at train.py:41`."""
    by_site: dict[str, list[int]] = {}
    for rank, call in calls.items():
        if call is not None and call.site:
            by_site.setdefault(call.site, []).append(rank)
    if len(by_site) == 1:
        return f" at {next(iter(by_site))}"
    named = [f"{site} ({ranks(some)})" for site, some in list(by_site.items())[:6]]
    return f" at {', '.join(named)}" if named else ""
