"""What the ranks reported, read and put in order; nothing is decided here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hccl_py.diagnosis.record import Cause, Failure
from hccl_py.fingerprint import describe, without_number


@dataclass(frozen=True)
class Proposal:
    """What one rank, the reporter, noticed first."""

    reporter: int
    failure: Failure

    @property
    def cause(self) -> Cause:
        """What it takes for the cause."""
        return self.failure.cause

    @property
    def rank(self) -> int:
        """Whom it blames; -1: nobody."""
        return self.failure.rank


@dataclass(frozen=True)
class Testimony:
    """The report of one rank.

    Attributes:
        rank: whose.
        proposal: what it noticed; None: nothing, it was asked.
        progress: of its engine, see `_core.Communicator.progress`.
        gone: ranks it lost: why, and their last collective if they said goodbye.
        elsewhere: what it does in other communicators, for people.
        timeout_s: of the call that was late.
        report: all of it, with what providers of extra state added.
    """

    rank: int
    proposal: Proposal | None
    progress: Mapping[str, Any]
    gone: Mapping[int, tuple[Cause, int]]
    elsewhere: Sequence[str] = ()
    timeout_s: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rank: int, report: Mapping[str, Any]) -> "Testimony":
        """Read a report, as `Witness.report` wrote it."""
        packed = report.get("failure")
        return cls(
            rank,
            Proposal(rank, Failure.unpacked(packed)) if packed else None,
            report.get("progress") or {},
            {one: (Cause(cause), last) for one, cause, last in report.get("gone") or ()},
            report.get("elsewhere") or (),
            report.get("timeout_s") or 0.0,
            report,
        )

    @property
    def sequence(self) -> int:
        """Number of the collective under way; 0: none."""
        return int(self.progress.get("sequence", 0))

    @property
    def fingerprint(self) -> int:
        """What it is."""
        return int(self.progress.get("fingerprint", 0))


@dataclass(frozen=True)
class Evidence:
    """All testimonies, and why the other ranks gave none."""

    testimonies: Mapping[int, Testimony]
    absent: Mapping[int, str]
    places: Sequence[tuple[str, int]]
    """Host and process id of every rank."""

    def proposals(self, *causes: Cause) -> list[Proposal]:
        """Return the proposals with one of these causes, by rank of the reporter."""
        ordered = [self.testimonies[rank].proposal for rank in sorted(self.testimonies)]
        return [one for one in ordered if one is not None and one.cause in causes]

    def call(self, proposals: Iterable[Proposal]) -> tuple[int, int]:
        """Return sequence and fingerprint of the first call that could not end; 0, 0: none."""
        failures = [one.failure for one in proposals]
        calls = [(one.sequence, one.call) for one in failures if one.sequence and one.call]
        calls = calls or [
            (one.sequence, one.fingerprint) for one in self.testimonies.values() if one.sequence
        ]
        sequence, fingerprint = min(calls, default=(0, 0))
        return sequence, without_number(fingerprint)

    def who(self, rank: int) -> str:
        """Name a rank, its host and its process."""
        if not 0 <= rank < len(self.places):
            return "a rank"
        return f"rank {rank} ({self.where(rank)})"

    def where(self, rank: int) -> str:
        """Name host and process of a rank."""
        host, pid = self.places[rank]
        return f"host {host}, pid {pid}"

    def all_of(self, ranks: Sequence[int]) -> str:
        """Name several ranks with host and process."""
        if len(ranks) == 1:
            return self.who(ranks[0])
        return "ranks " + listing([f"{rank} ({self.where(rank)})" for rank in ranks])


def named(sequence: int, fingerprint: int) -> str:
    """Name a call with its number, "" if there is none: what a message begins with."""
    if not sequence or not fingerprint:
        return ""
    return f"{describe(without_number(fingerprint))} number {sequence}: "


def listing(names: Sequence[str]) -> str:
    """Join names: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers: Sequence[int]) -> str:
    """Name ranks by their numbers: `rank 2`, `ranks 0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 3 else [str(number) for number in run]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(parts)}"
