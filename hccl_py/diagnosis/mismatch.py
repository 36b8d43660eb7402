"""Ranks that made different calls, grouped by call.

What decides are the calls that the ranks remember: the first number that does not mean the same
call to all of them is where the program went wrong, whoever noticed it, and however late. A rank
that waits in vain may have noticed nothing but that; so a timeout is looked at here as well, and a
rank that has waited for long, before its time is up.
"""

from collections.abc import Mapping, Sequence

from hccl_py.diagnosis.call_log import PastCall, past_calls
from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.record import Cause, Failure
from hccl_py.diagnosis.reports import Evidence, Proposal, ranks
from hccl_py.fingerprint import describe, number_of, without_number

_HINT = "all ranks must make the same calls in the same order with the same sizes"
_MOST_GROUPS = 6
_LOOKED_AT = (Cause.MISMATCH, Cause.TIMED_OUT)

Calls = Mapping[int, PastCall]
"""One rank's calls by number, or all ranks' calls of one number."""


def tell_mismatch(evidence: Evidence) -> Finding | None:
    """Say which ranks called what. The fewest are to blame, of equal groups that without rank 0."""
    proposals = evidence.proposals(Cause.MISMATCH)
    others = any(evidence.proposals(cause) for cause in Cause if cause not in _LOOKED_AT)
    if others and not proposals:
        return None
    histories = {rank: past_calls(one.report) for rank, one in evidence.testimonies.items()}
    number = first_difference(histories)
    if number is not None:
        return _finding(number, histories)
    if not proposals:
        return None
    return _of_two(evidence, proposals[0], histories)


def first_difference(histories: Mapping[int, Calls]) -> int | None:
    """Return the lowest number that does not mean the same call to all who remember it."""
    numbers = sorted({number for calls in histories.values() for number in calls})
    for number in numbers:
        made = {calls[number].key for calls in histories.values() if number in calls}
        if len(made) > 1:
            return number
    return None


def _finding(number: int, histories: Mapping[int, Calls]) -> Finding:
    groups: dict[tuple[int, int | None], dict[int, PastCall]] = {}
    missing = []
    for rank in sorted(histories):
        call = histories[rank].get(number)
        if call is not None:
            groups.setdefault(call.key, {})[rank] = call
        elif max(histories[rank], default=0) < number:
            missing.append(rank)
    ordered = sorted(groups.values(), key=lambda one: (len(one), 0 in one, min(one)))
    parts: list[str] = []
    for members in ordered[:_MOST_GROUPS]:
        call = next(iter(members.values()))
        as_number = f" as number {number}" if not parts else ""
        parts.append(f"{ranks(list(members))} called {call}{as_number}{_sites(members)}")
    if len(ordered) > _MOST_GROUPS:
        parts.append(f"{len(ordered) - _MOST_GROUPS} more groups of ranks called something else")
    if missing:
        parts.append(f"{ranks(missing)} had not come to it")
    # The call of the many, for that is the one that most of the callers see.
    usual = next(iter(ordered[-1].values()))
    text = f"ranks made different calls: {', '.join(parts)}; {_HINT}"
    return Finding(Cause.MISMATCH, min(ordered[0]), (number, usual.fingerprint), text)


def _of_two(evidence: Evidence, first: Proposal, histories: Mapping[int, Calls]) -> Finding:
    """Tell what one rank has seen of one other: the lengths of a message, or no histories."""
    culprit = first.rank if first.rank >= 0 else first.reporter
    failure = first.failure
    if not failure.their_call:
        both = {
            rank: histories[rank][failure.sequence]
            for rank in (first.reporter, culprit)
            if failure.sequence in histories.get(rank, {})
        }
        text = f"{sizes(failure)}{_sites(both)}; {_HINT}"
        return Finding(Cause.MISMATCH, culprit, evidence.call([first]), text)
    parts = [
        f"rank {rank} called {describe(without_number(call))} as number {number}"
        for rank, call, number in (
            (culprit, failure.their_call, number_of(failure.their_call)),
            (first.reporter, failure.call, failure.sequence or number_of(failure.call)),
        )
    ]
    text = f"ranks made different calls: {', '.join(parts)}; {_HINT}"
    return Finding(Cause.MISMATCH, culprit, evidence.call([first]), text)


def _sites(members: Calls) -> str:
    """Say where the ranks called it, if they know."""
    by_site: dict[str, list[int]] = {}
    for rank, call in members.items():
        if call.site:
            by_site.setdefault(call.site, []).append(rank)
    if len(by_site) == 1:
        return f" at {next(iter(by_site))}"
    named = [f"{site} ({ranks(some)})" for site, some in list(by_site.items())[:_MOST_GROUPS]]
    return f" at {', '.join(named)}" if named else ""


def sites_of(histories: Mapping[int, Calls], number: int, some: Sequence[int]) -> str:
    """Say where some ranks made the call of that number: ` at train.py:41`, or nothing."""
    return _sites({rank: histories[rank][number] for rank in some if number in histories[rank]})


def sizes(failure: Failure) -> str:
    """Say which two sizes of a message do not fit."""
    sent, expected = failure.sent_bytes, failure.expected_bytes
    if failure.sends:
        return f"rank {failure.rank} receives {expected} bytes where this rank sends {sent}"
    return f"rank {failure.rank} gives {sent} bytes where {expected} bytes were expected"
