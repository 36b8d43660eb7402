"""Ranks that ended: died, left, or lost to the others."""

from collections.abc import Iterable
from dataclasses import replace
from signal import Signals

from hccl_py.diagnosis.record import Diagnosis, Failure, Report
from hccl_py.diagnosis.reports import Reports, ranks
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import Fate

_MAX_NAMED = 4
_SILENT = "connections closed without a goodbye"
_NOTHING_CAME = (
    "no reconnect succeeded (does a firewall, a route or a cable stop packets, perhaps in one "
    "direction? see hccl-launch --check)"
)


def find_death(reports: Reports) -> Diagnosis | None:
    """Name all ranks that died: the first one noticed need not be the first that died."""
    failures = reports.failures(Cause.DIED)
    ended = [one for report in reports.by_rank.values() for one in report.ended]
    observed = [*failures.values(), *(one for one in ended if one.cause is Cause.DIED)]
    dead = {one.rank for one in observed}
    dead |= {rank for rank, absence in reports.absent.items() if absence.fate is Fate.DEAD}
    dead = {rank for rank in dead if not _is_alive(reports, rank)}
    failures = failures or reports.failures(Cause.LOST)
    if not dead or not failures:
        return None
    first = min(dead)
    text = (
        f"{reports.name(*sorted(dead))} died: {_how(dead, observed)}; "
        f"look at the output of rank {first} first"
    )
    call = reports.first_call(failures.values())
    return replace(reports.diagnosis(Cause.DIED, first, text, call), dead=tuple(sorted(dead)))


def _how(dead: set[int], observed: list[Failure]) -> str:
    ends = {}
    for one in observed:
        if one.rank not in dead:
            continue
        if one.signal is not None:
            ends[one.rank] = f"killed by signal {one.signal} ({Signals(one.signal).name})"
        elif one.exit_code is not None:
            ends[one.rank] = f"its process ended with exit code {one.exit_code}"
    if len(dead) > 1:
        return "; ".join([f"their {_SILENT}", *(f"rank {k} {v}" for k, v in sorted(ends.items()))])
    (rank,) = dead
    errors = [one.error for one in observed if one.rank == rank]
    return ends.get(rank) or next(filter(None, errors), "") or f"its {_SILENT}"


def find_lost(reports: Reports) -> Diagnosis | None:
    """Name the ranks of other nodes whose connections closed, and that sent no report either."""
    failures = reports.failures(Cause.LOST)
    lost = {one.rank for one in failures.values()} - reports.by_rank.keys()
    if not lost:
        return None
    verb, their = ("is", "its") if len(lost) == 1 else ("are", "their")
    text = (
        f"{reports.name(*sorted(lost))} {verb} lost: {their} {_SILENT}, and no rank of the same "
        f"node confirms that the process ended; look at the output of rank {min(lost)} first, then "
        "at the network"
    )
    call = reports.first_call(failures.values())
    return replace(reports.diagnosis(Cause.LOST, min(lost), text, call), dead=tuple(sorted(lost)))


def _is_alive(reports: Reports, rank: int) -> bool:
    """Return whether only a connection of a rank ended: the ranks at both ends report that.

    A dead rank reports no such end. A report alone proves nothing: its rank may have died since.
    """
    report = reports.by_rank.get(rank)
    if report is None:
        return False
    lost = report.lost()
    return any(rank in other.lost() for one, other in reports.by_rank.items() if one in lost)


def died_since(reports: Reports, rank: int, ended: Iterable[Failure]) -> set[int]:
    """Return the ranks that this rank has lost, by what it sees now: perhaps after the reports."""
    now = replace(reports.by_rank.get(rank, Report()), ended=tuple(ended))
    known = replace(reports, by_rank={**reports.by_rank, rank: now})
    return {one.rank for one in now.ended if one.cause is Cause.LOST} - {
        one for one in reports.by_rank if _is_alive(known, one)
    }


def find_left(reports: Reports) -> Diagnosis | None:
    """Name the rank that left earliest while others still call."""
    failures = {one.rank: one for one in reports.failures(Cause.LEFT).values()}
    if not failures:
        return None
    ended = [one for report in reports.by_rank.values() for one in report.ended]
    last = {one.rank: one.last_sequence for one in ended if one.cause is Cause.LEFT}
    rank = min(failures, key=lambda one: (last.get(one, 0), one))
    failure = failures[rank]
    handling, hint = "", "see whether all ranks make the same number of calls"
    if failure.error:
        handling = f" (handling {failure.error})"
        hint = f"look at the output of rank {rank} first"
    text = (
        f"{reports.name(rank)} left after collective {failure.last_sequence}{handling} "
        f"while others still call; {hint}"
    )
    return reports.diagnosis(Cause.LEFT, rank, text, reports.first_call(failures.values()))


def find_unreachable(reports: Reports) -> Diagnosis | None:
    """Name the rank that most others cannot reach; of equals, the one that lost more."""
    failures = reports.failures(Cause.UNREACHABLE, Cause.LOST, Cause.DIED)
    if not failures:
        return None
    lost_by = {
        rank: report.lost() | ({report.failure.rank} if report.failure is not None else set())
        for rank, report in reports.by_rank.items()
    }

    def weight(one: Failure) -> tuple[int, bool, int, int]:
        num_reporters = sum(one.rank in lost for lost in lost_by.values())
        num_lost = len(lost_by.get(one.rank, ()))
        return -num_reporters, one.rank in reports.by_rank, -num_lost, one.rank

    found = min(failures.values(), key=weight)
    how = "a connection closed, though its process is alive"
    if found.cause is Cause.UNREACHABLE and not found.process_lives:
        reasons = [found.error or _NOTHING_CAME, ", ".join(map(str, found.paths))]
        how = "; ".join(filter(None, reasons))
    reporters = [rank for rank, lost in lost_by.items() if found.rank in lost]
    text = (
        f"{reports.name(found.rank)} can no longer be reached: {how}; "
        f"look at the output of {ranks([found.rank, *reporters][:_MAX_NAMED])} first"
    )
    call = reports.first_call(failures.values())
    return reports.diagnosis(Cause.UNREACHABLE, found.rank, text, call)
