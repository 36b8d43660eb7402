"""Decides which failure came first: the rules in order of precedence."""

from collections.abc import Callable

from hccl_py.diagnosis.deadlock import find_deadlock
from hccl_py.diagnosis.ended import find_death, find_left, find_lost, find_unreachable
from hccl_py.diagnosis.mismatch import find_mismatch
from hccl_py.diagnosis.record import Diagnosis
from hccl_py.diagnosis.reports import Reports
from hccl_py.diagnosis.timeout import find_timeout
from hccl_py.transport._core import Cause

_OWN_ACTIONS = {
    Cause.UNCAUGHT_EXCEPTION: "{who} failed: uncaught {reason}",
    Cause.INTERNAL_ERROR: "{who} failed: {reason}",
    Cause.INTERRUPTED: "aborted by {who}: a signal interrupted the call half-way",
    Cause.ABORTED: "aborted by {who}: {reason}",
    Cause.CLOSED: "{who} closed the communicator while calls were under way",
}
"""Causes that a rank knows of itself, in order of precedence."""


def diagnose(reports: Reports) -> Diagnosis | None:
    """Return the failure that came first; None: no rank reports one."""
    return next(filter(None, (rule(reports) for rule in _RULES)), None)


def find_own_action(reports: Reports) -> Diagnosis | None:
    """Name the rank that ended the communicator; its own report comes before those of others."""
    for cause, wording in _OWN_ACTIONS.items():
        found = [
            (one.rank != reporter, one.rank if one.rank >= 0 else reporter, one)
            for reporter, one in reports.failures(cause).items()
        ]
        if found:
            _, rank, failure = min(found, key=lambda one: one[:2])
            text = wording.format(who=reports.name(rank), reason=failure.reason)
            return reports.diagnosis(cause, rank, text, reports.first_call([failure]))
    return None


_RULES: tuple[Callable[[Reports], Diagnosis | None], ...] = (
    find_mismatch,
    find_deadlock,
    find_own_action,
    find_death,
    find_left,
    find_lost,
    find_unreachable,
    find_timeout,
)
