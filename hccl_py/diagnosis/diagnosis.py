"""Which failure came first: the rules in the order of their weight, and what they found out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.diagnosis.deadlock import find_deadlock
from hccl_py.diagnosis.ended import find_death, find_left, find_lost, find_unreachable
from hccl_py.diagnosis.mismatch import find_mismatch
from hccl_py.diagnosis.record import decode
from hccl_py.diagnosis.report import Finding, Report, Reports
from hccl_py.diagnosis.timeout import find_timeout
from hccl_py.fingerprint import describe
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import Absence


@dataclass(frozen=True)
class Diagnosis:
    """Why all calls of a communicator ended; the same on all ranks.

    Attributes:
        cause: its kind.
        text: the whole message.
        rank: who caused it; None: nobody in particular.
        host, pid: of that rank's process.
        sequence: number of the call that met it; 0: none was under way.
        fingerprint: that call; 0: none was under way.
        also: ids of other communicators that cannot go on either.
    """

    cause: Cause
    text: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    sequence: int = 0
    fingerprint: int = 0
    also: tuple[bytes, ...] = ()

    def packed(self) -> bytes:
        """Return what goes to all ranks, and through their engines."""
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpacked(cls, packed: bytes) -> "Diagnosis":
        """Read what `packed` returned; raises TypeError or ValueError for anything else."""
        diagnosis: Diagnosis = decode(cls, msgpack.unpackb(packed))
        return diagnosis


def diagnose(reports: Reports) -> Diagnosis | None:
    """Return the failure that came first; None: no rank reports one."""
    for rule in _RULES:
        finding = rule(reports)
        if finding is not None:
            return complete(finding, reports.processes)
    return None


def complete(finding: Finding, processes: Sequence[tuple[str, int]]) -> Diagnosis:
    """Put the name of the call before the text, and add host and pid of the rank."""
    sequence, fingerprint = finding.call
    call = f"{describe(fingerprint)} number {sequence}: " if sequence and fingerprint else ""
    known = finding.rank is not None and 0 <= finding.rank < len(processes)
    rank = finding.rank if known else None
    host, pid = (None, None) if rank is None else processes[rank]
    text = call + finding.text
    return Diagnosis(finding.cause, text, rank, host, pid, sequence, fingerprint, finding.also)


def reports_of(
    packed: Mapping[int, Mapping[str, Any]],
    absent: Mapping[int, Absence],
    processes: Sequence[tuple[str, int]],
) -> Reports:
    """Read what the control plane collected."""
    by_rank = {rank: Report.unpacked(one) for rank, one in packed.items()}
    return Reports(by_rank, absent, processes)


def _reported_by_itself(cause: Cause, wording: str) -> Callable[[Reports], Finding | None]:
    """Return the rule of a cause that one rank knows everything about."""

    def rule(reports: Reports) -> Finding | None:
        found = [
            (one.rank != reporter, one.rank if one.rank >= 0 else reporter, one)
            for reporter, one in reports.failures(cause).items()
        ]
        if not found:
            return None
        _, rank, failure = min(found, key=lambda one: one[:2])
        text = wording.format(who=reports.name(rank), reason=failure.reason)
        return Finding(cause, rank, reports.first_call([failure]), text)

    return rule


_RULES: tuple[Callable[[Reports], Finding | None], ...] = (
    find_mismatch,
    find_deadlock,
    _reported_by_itself(Cause.UNCAUGHT_EXCEPTION, "{who} failed: uncaught {reason}"),
    _reported_by_itself(Cause.INTERNAL_ERROR, "{who} failed: {reason}"),
    _reported_by_itself(
        Cause.INTERRUPTED, "aborted by {who}: a signal interrupted the call half-way"
    ),
    _reported_by_itself(Cause.ABORTED, "aborted by {who}: {reason}"),
    _reported_by_itself(Cause.CLOSED, "{who} closed the communicator while calls were under way"),
    find_death,
    find_left,
    find_lost,
    find_unreachable,
    find_timeout,
)
