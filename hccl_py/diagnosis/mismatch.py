"""Ranks that made different calls, grouped by call.

The ranks' call logs decide: the program went wrong at the first number that is not the same call on
all ranks, no matter which rank noticed it, or when. A rank may notice only that its call makes no
progress, so this rule also applies to timeouts, and to long waits before them.
"""

from collections.abc import Mapping

from hccl_py.diagnosis.record import Diagnosis, Failure, LoggedCall
from hccl_py.diagnosis.reports import Reports, ranks, sites
from hccl_py.fingerprint import describe, unpack, without_number
from hccl_py.transport._core import Cause

_HINT = "all ranks must make the same calls in the same order with the same sizes"
_MAX_GROUPS = 6
_OTHERS = tuple(cause for cause in Cause if cause not in (Cause.MISMATCH, Cause.TIMED_OUT))


def find_mismatch(reports: Reports) -> Diagnosis | None:
    """Name all ranks' calls, and a culprit: in the smallest group, preferably without rank 0."""
    failures = reports.failures(Cause.MISMATCH)
    if not failures and reports.failures(*_OTHERS):
        return None
    logs = {
        rank: {call.number: call for call in report.calls}
        for rank, report in reports.by_rank.items()
    }
    number = _first_difference(logs)
    if number is not None:
        return _by_number(reports, number, logs)
    return next((_between_two(reports, *one) for one in failures.items()), None)


def _first_difference(logs: Mapping[int, Mapping[int, LoggedCall]]) -> int | None:
    for number in sorted({number for calls in logs.values() for number in calls}):
        if len({calls[number].key for calls in logs.values() if number in calls}) > 1:
            return number
    return None


def _by_number(
    reports: Reports, number: int, logs: Mapping[int, Mapping[int, LoggedCall]]
) -> Diagnosis:
    groups: dict[tuple[int, int | None], dict[int, LoggedCall]] = {}
    for rank in sorted(logs):
        call = logs[rank].get(number)
        if call is not None:
            groups.setdefault(call.key, {})[rank] = call
    missing = [rank for rank in sorted(logs) if max(logs[rank], default=0) < number]
    ordered = sorted(groups.values(), key=lambda one: (len(one), 0 in one, min(one)))
    parts: list[str] = []
    for members in ordered[:_MAX_GROUPS]:
        call = next(iter(members.values()))
        as_number = f" as number {number}" if not parts else ""
        parts.append(f"{ranks(members)} called {call}{as_number}{sites(members)}")
    if len(ordered) > _MAX_GROUPS:
        parts.append(f"{len(ordered) - _MAX_GROUPS} more groups of ranks called something else")
    if missing:
        parts.append(f"{ranks(missing)} had not made that call yet")
    # The call of the largest group: most callers see that one.
    usual = next(iter(ordered[-1].values()))
    text = f"ranks made different calls: {', '.join(parts)}; {_HINT}"
    return reports.diagnosis(Cause.MISMATCH, min(ordered[0]), text, (number, usual.fingerprint))


def _between_two(reports: Reports, reporter: int, failure: Failure) -> Diagnosis:
    """Report what one rank observed of another: sizes of a message, or calls without a log."""
    culprit = failure.rank if failure.rank >= 0 else reporter
    call = reports.first_call([failure])
    if not failure.their_call:
        both = {rank: reports.by_rank.get(rank) for rank in (reporter, culprit)}
        made = {rank: one.call(failure.sequence) for rank, one in both.items() if one is not None}
        text = f"{failure.sizes()}{sites(made)}; {_HINT}"
        return reports.diagnosis(Cause.MISMATCH, culprit, text, call)
    parts = [
        f"rank {rank} called {describe(without_number(fingerprint))} as number {number}"
        for rank, fingerprint, number in (
            (culprit, failure.their_call, unpack(failure.their_call).sequence),
            (reporter, failure.call, failure.sequence or unpack(failure.call).sequence),
        )
    ]
    text = f"ranks made different calls: {', '.join(parts)}; {_HINT}"
    return reports.diagnosis(Cause.MISMATCH, culprit, text, call)
