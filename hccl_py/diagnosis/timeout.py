"""A call that is late: which ranks have arrived, what the others do, and how far the call is."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from hccl_py.diagnosis.record import Diagnosis, Failure, Report
from hccl_py.diagnosis.reports import Reports, listing, ranks, sites
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import Fate

_MAX_NAMED = 8
_PROBED_S = 2.5
"""Silence after which it is known whether a host answers: kernels probe it every second."""
_HINT = "see whether those ranks are stuck or made another call, or raise the timeout"
_ALL_ARRIVED = (
    "all ranks are in this call: see whether one is stuck, or whether the network between them "
    "loses or changes data (hccl-launch --check), or raise the timeout"
)


def find_timeout(reports: Reports) -> Diagnosis | None:
    """Name a missing rank as the culprit; if none is, the rank that the slowest waits for."""
    failures = reports.failures(Cause.TIMED_OUT)
    if not failures:
        return None
    sequence, fingerprint = reports.first_call(failures.values())
    limits_s = [reports.by_rank[rank].progress.timeout_s for rank in failures]
    limit_s = min((one for one in limits_s if one > 0), default=0.0)
    limit = f" after {limit_s:g} s" if limit_s else ""
    if not sequence:
        first = next(iter(failures.values()))
        culprit = first.rank if first.rank >= 0 else None
        text = f"Timed out{limit}, {position(first)}; {_HINT}"
        return reports.diagnosis(Cause.TIMED_OUT, culprit, text)
    found = arrivals(reports, sequence)
    text = f"Timed out{limit}: {found.text}; {_HINT if found.missing else _ALL_ARRIVED}"
    observed = [one.rank for one in failures.values() if one.rank >= 0]
    culprit = next(iter([*found.missing, *found.waiting_for, *observed]), None)
    return reports.diagnosis(Cause.TIMED_OUT, culprit, text, (sequence, fingerprint))


def position(failure: Failure) -> str:
    """Return how far a call was at its deadline, and what it waited for."""
    if failure.half_done:
        where = "a message was incomplete at the deadline"
    elif failure.waiting_for:
        where = f"waiting for {ranks(failure.waiting_for)} {failure.stage}"
    else:
        where = str(failure.stage)
    return "; ".join([where, *_paths(failure)])


class Arrivals(NamedTuple):
    """The ranks that have arrived in a collective."""

    text: str  # which ranks have, what the others do, and how far the slowest is
    missing: list[int]  # ranks that have not, the likeliest culprit first
    waiting_for: Sequence[int]  # ranks that the slowest of the others waits for


def arrivals(reports: Reports, sequence: int) -> Arrivals:
    """Find out which ranks have arrived in a collective."""
    everyone = sorted(reports.by_rank.items())
    arrived = {rank: one for rank, one in everyone if one.progress.submitted >= sequence}
    late = {rank: one for rank, one in everyone if rank not in arrived}
    parts = [_absent(reports)] if reports.absent else []
    if late:
        names = [f"{reports.name(rank)}, which is {activity(one)}" for rank, one in late.items()]
        parts.append(f"{_shortened(names)}, {'has' if len(late) == 1 else 'have'} not arrived")
    if arrived:
        verb = "have" if len(arrived) > 1 else "has"
        made = {rank: one.call(sequence) for rank, one in arrived.items()}
        parts.append(f"{ranks(arrived)} {verb} arrived{sites(made)}")
    in_it = [(k, one.progress) for k, one in arrived.items() if one.progress.sequence == sequence]
    waiting_for: Sequence[int] = ()
    if in_it:
        slowest, progress = min(in_it, key=lambda one: one[1].bytes_done)
        waiting_for = progress.waiting_for
        waits = f", waiting for {ranks(waiting_for)}" if waiting_for else ""
        parts.append(
            f"rank {slowest} is {progress.stage}, "
            f"{progress.bytes_done} of {progress.bytes_total} bytes moved{waits}"
        )
    for reporter, failure in reports.failures(Cause.TIMED_OUT).items():
        parts += [f"rank {reporter}, {path}" for path in _paths(failure)]
    # Ranks in an earlier call may wait for a silent rank, or for one in no call.
    busy = [rank for rank, one in late.items() if one.progress.call]
    # One that only did not answer in time may have waited for a core.
    silent = {rank for rank, one in reports.absent.items() if one.silent_s}
    stopped = reports.stopped()
    missing = sorted(
        reports.absent or late,
        key=lambda rank: (rank in busy, rank not in stopped, rank not in silent, rank),
    )
    return Arrivals("; ".join(parts), missing, waiting_for)


def _paths(failure: Failure) -> list[str]:
    by_rank: dict[int, list[str]] = {}
    for path in failure.paths:
        by_rank.setdefault(path.rank, []).append(str(path))
    return [f"to rank {rank}: {', '.join(some)}" for rank, some in by_rank.items()]


def _shortened(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return listing([*names[:_MAX_NAMED], f"{rest} more"] if rest > 0 else names)


def _absent(reports: Reports) -> str:
    names = []
    for rank, absence in sorted(reports.absent.items()):
        state = absence.text
        if absence.fate is Fate.UNKNOWN:
            state = f"{_state_of_silent(rank, reports)}: {state}"
        names.append(f"{reports.name(rank)} is {state}")
    return _shortened(names)


def _state_of_silent(rank: int, reports: Reports) -> str:
    """Return why a rank may be silent; the same for all ranks of a node if all of them are silent.

    The kernel of a stopped process still answers the probes of other kernels.
    """
    if rank in reports.stopped():
        return f"stopped (kill -CONT {reports.processes[rank][1]} there continues it)"
    node = reports.silent_node(rank)
    some = node | {rank}
    seen = [one.progress for one in reports.by_rank.values()]
    if any(not some.isdisjoint(one.out_of_reach) for one in seen):
        return "out of reach"
    absent = [one for k, one in reports.absent.items() if k in node and one.fate is Fate.UNKNOWN]
    silent_s = min((one.silent_s for one in absent), default=math.inf)
    if silent_s < _PROBED_S or any(not some.isdisjoint(one.unlinked) for one in seen):
        return "out of reach, stopped, or busy without releasing the GIL"
    return "stopped, or busy without releasing the GIL"


def activity(report: Report) -> str:
    """Return what a rank does instead."""
    if report.progress.call:
        return f"still in {report.progress.call}"
    if report.other_calls:
        return f"in {listing([f'{one.call} of group {one.name}' for one in report.other_calls])}"
    return "in a send or recv" if report.progress.num_transfers else "in no collective"
