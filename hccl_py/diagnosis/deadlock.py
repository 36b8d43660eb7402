"""Ranks that wait for each other in different communicators.

A rank with one thread that is blocked in a call of one group cannot make a call of another. If such
ranks wait for each other in a cycle, none of them can continue: they made the calls of the groups
in different orders. A process with several threads is left out: another of its threads might make
the missing call.
"""

from collections.abc import Iterator, Mapping

from hccl_py.diagnosis.record import Diagnosis, OtherCall, Report
from hccl_py.diagnosis.reports import Reports
from hccl_py.fingerprint import without_number
from hccl_py.transport._core import Cause

_HINT = "all ranks must make the calls of different groups in the same order"
_OTHERS = tuple(cause for cause in Cause if cause is not Cause.TIMED_OUT)


def find_deadlock(reports: Reports) -> Diagnosis | None:
    """Find a cycle that leads through more than one communicator."""
    if reports.failures(*_OTHERS):
        return None
    blocked = {rank: one for rank, one in reports.by_rank.items() if one.single_threaded}
    edges = {rank: list(_waits_for(one, blocked, reports)) for rank, one in blocked.items()}
    for start in sorted(edges):
        cycle = _cycle_from(start, edges)
        here = [rank for rank in cycle if _is_here(blocked[rank])]
        if here and len(here) < len(cycle):
            return _diagnosis(reports, cycle, here[0])
    return None


def _is_here(report: Report) -> bool:
    return bool(report.progress.sequence and report.stuck)


def _elsewhere(report: Report) -> OtherCall | None:
    if _is_here(report):
        return None
    return next((other for other in report.other_calls if other.stuck), None)


def _waits_for(report: Report, blocked: Mapping[int, Report], reports: Reports) -> Iterator[int]:
    if _is_here(report):
        for rank in report.progress.waiting_for:
            if rank in blocked and blocked[rank].progress.submitted < report.progress.sequence:
                yield rank
    elif elsewhere := _elsewhere(report):
        for rank, other in blocked.items():
            in_it = elsewhere.communicator_id in (one.communicator_id for one in other.other_calls)
            if reports.processes[rank] in elsewhere.waits_for and not in_it:
                yield rank


def _cycle_from(start: int, edges: Mapping[int, list[int]]) -> list[int]:
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop()
        for rank in edges.get(path[-1], ()):
            if rank == start:
                return path
            if rank not in seen:
                seen.add(rank)
                paths.append([*path, rank])
    return []


def _diagnosis(reports: Reports, cycle: list[int], first: int) -> Diagnosis:
    at = cycle.index(first)
    ordered = [*cycle[at:], *cycle[:at]]
    parts = []
    also = []
    for rank, next_rank in zip(ordered, [*ordered[1:], first], strict=True):
        report = reports.by_rank[rank]
        elsewhere = _elsewhere(report)
        if elsewhere is None:
            doing = f"{report.progress.call} of this group"
        else:
            also.append(elsewhere.communicator_id)
            doing = f"{elsewhere.call} of group {elsewhere.name}"
        parts.append(f"{reports.name(rank)} is in {doing} and waits for rank {next_rank}")
    progress = reports.by_rank[first].progress
    text = f"ranks wait for each other in different groups: {'; '.join(parts)}; {_HINT}"
    culprit = next(rank for rank in ordered if not _is_here(reports.by_rank[rank]))
    call = progress.sequence, without_number(progress.fingerprint)
    return reports.diagnosis(Cause.MISMATCH, culprit, text, call, tuple(also))
