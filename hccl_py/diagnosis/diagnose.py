"""The order in which causes are looked for, and the verdict made of the first that is found."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgpack

from hccl_py.diagnosis.deadlock import tell_deadlock
from hccl_py.diagnosis.death import tell_death, tell_left, tell_lost, tell_unreachable
from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.mismatch import tell_mismatch
from hccl_py.diagnosis.record import Cause
from hccl_py.diagnosis.reports import Evidence, Proposal, Testimony, named
from hccl_py.diagnosis.timeout import tell_timeout
from hccl_py.fingerprint import describe


class Verdict(NamedTuple):
    """Why all calls of a communicator ended.

    Attributes:
        cause: in one word.
        rank: who caused it; None: nobody in particular.
        host: where that rank ran.
        pid: its process.
        collective: the call that met it; None: none was under way.
        sequence: number of that call; None: none was under way.
        fingerprint: that call in 64 bits; 0: none was under way.
        text: the whole message.
        also: ids of other communicators that cannot go on either.
    """

    cause: Cause
    rank: int | None
    host: str | None
    pid: int | None
    collective: str | None
    sequence: int | None
    fingerprint: int
    text: str
    also: tuple[bytes, ...] = ()

    def packed(self) -> bytes:
        """Return what goes to all ranks, and through their engines."""
        return cast(bytes, msgpack.packb(self._replace(cause=int(self.cause))))

    @classmethod
    def unpacked(cls, packed: bytes) -> "Verdict":
        """Read what `packed` returned; raises TypeError or ValueError for anything else."""
        cause, *others, also = msgpack.unpackb(packed)
        return cls(Cause(cause), *others, tuple(also))


class Judge:
    """Decides for one communicator."""

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        """Know the host and the process id of every rank."""
        self.places = places

    def decide(
        self, reports: Mapping[int, Mapping[str, Any]], absent: Mapping[int, str]
    ) -> Verdict:
        """Return the verdict.

        Args:
            reports: what `Witness.report` said, by rank.
            absent: why the other ranks have none.
        """
        testimonies = {rank: Testimony.of(rank, report) for rank, report in reports.items()}
        evidence = Evidence(testimonies, absent, self.places)
        for tell in _TELLERS:
            finding = tell(evidence)
            if finding is not None:
                return self.verdict(finding)
        raise ValueError("no rank proposed a failure")

    def verdict(self, finding: Finding) -> Verdict:
        """Complete a finding: its call goes before its text, the culprit gets an address."""
        host, pid, rank = None, None, None
        if finding.rank is not None and finding.rank in range(len(self.places)):
            rank, (host, pid) = finding.rank, self.places[finding.rank]
        sequence, fingerprint = finding.call
        return Verdict(
            finding.cause,
            rank,
            host,
            pid,
            describe(fingerprint) if fingerprint else None,
            sequence or None,
            fingerprint,
            named(sequence, fingerprint) + finding.text,
            finding.also,
        )


def _first(evidence: Evidence, cause: Cause) -> Proposal | None:
    """Return the first-hand proposal of a cause: by the rank itself, if it could still tell."""
    found = evidence.proposals(cause)
    return min(found, key=lambda one: (one.reporter != one.rank, one.rank), default=None)


def _tell(cause: Cause, wording: str) -> Callable[[Evidence], Finding | None]:
    """Tell of a cause that one rank knows all about."""

    def tell(evidence: Evidence) -> Finding | None:
        found = _first(evidence, cause)
        if found is None:
            return None
        rank = found.rank if found.rank >= 0 else found.reporter
        text = wording.format(who=evidence.who(rank), reason=found.failure.reason)
        return Finding(cause, rank, evidence.call([found]), text)

    return tell


_TELLERS: tuple[Callable[[Evidence], Finding | None], ...] = (
    tell_mismatch,
    tell_deadlock,
    _tell(Cause.UNCAUGHT_EXCEPTION, "{who} failed: uncaught {reason}"),
    _tell(Cause.INTERNAL_ERROR, "{who} failed: {reason}"),
    _tell(Cause.INTERRUPTED, "aborted by {who}: a signal interrupted the call half-way"),
    _tell(Cause.ABORTED, "aborted by {who}: {reason}"),
    _tell(Cause.CLOSED, "{who} closed the communicator while calls were under way"),
    tell_death,
    tell_left,
    tell_lost,
    tell_unreachable,
    tell_timeout,
)
