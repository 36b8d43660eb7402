"""Ranks that made different calls, grouped by call."""

from hccl_py.fingerprint import describe, number_of, without_number
from hccl_py.verdict.causes import Cause
from hccl_py.verdict.evidence import Evidence, Proposal, ranks
from hccl_py.verdict.finding import Finding

Call = tuple[int, int]
"""Sequence number, as far as it is known, and fingerprint without it."""

_HINT = "all ranks must make the same calls in the same order with the same sizes"


def tell_mismatch(evidence: Evidence) -> Finding | None:
    """Say which ranks called what. The fewest are to blame, of equal groups that without rank 0."""
    proposals = evidence.proposals(Cause.MISMATCH)
    if not proposals:
        return None
    groups = _groups(evidence, proposals)
    if len(groups) < 2:  # of a kind that the engine describes best: sizes of one message
        first = proposals[0]
        rank = first.rank if first.rank >= 0 else first.reporter
        return Finding(Cause.MISMATCH, rank, evidence.call(proposals), first.text)
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), 0 in group[1], group[1]))
    numbers = {sequence for sequence, _ in groups}
    parts: list[str] = []
    for (sequence, fingerprint), members in ordered:
        number = f" as number {sequence}" if not parts or len(numbers) > 1 else ""
        parts.append(f"{ranks(members)} called {describe(fingerprint)}{number}")
    # The call of the many, for that is the one that most of the callers see.
    text = f"ranks made different calls: {', '.join(parts)}; {_HINT}"
    return Finding(Cause.MISMATCH, ordered[0][1][0], ordered[-1][0], text)


def _groups(evidence: Evidence, proposals: list[Proposal]) -> dict[Call, list[int]]:
    """Return the calls that ranks made where they differ, and who made each."""
    calls: dict[int, Call] = {}
    for one in proposals:
        if not one.received:
            continue
        calls[one.reporter] = _call(one.expected, one.sequence)
        calls.setdefault(one.rank, _call(one.received, 0))
    numbers = {sequence for sequence, _ in calls.values()}
    for rank, testimony in evidence.testimonies.items():
        if rank not in calls and testimony.sequence in numbers:
            calls[rank] = _call(testimony.fingerprint, testimony.sequence)
    groups: dict[Call, list[int]] = {}
    for rank in sorted(calls):
        groups.setdefault(calls[rank], []).append(rank)
    return groups


def _call(fingerprint: int, sequence: int) -> Call:
    return sequence or number_of(fingerprint), without_number(fingerprint)
