"""A call that was late: who had arrived, who had not and what they do, how far the slowest got."""

from collections.abc import Mapping
from typing import Any

from hccl_py.diagnosis.call_log import past_calls
from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.mismatch import sites_of
from hccl_py.diagnosis.record import Cause, Failure, Stage
from hccl_py.diagnosis.reports import Evidence, Proposal, Testimony, listing, named, ranks

_MAX_NAMED = 8
_HINT = "see whether those ranks are stuck or made another call, or raise the timeout"


def tell_timeout(evidence: Evidence) -> Finding | None:
    """Blame who is missing; if nobody is, whom the slowest waits for."""
    proposals = evidence.proposals(Cause.TIMED_OUT)
    if not proposals:
        return None
    sequence, fingerprint = evidence.call(proposals)
    limit = _limit(evidence, proposals)
    if not sequence:
        first = proposals[0]
        culprit = first.rank if first.rank >= 0 else None
        text = f"Timed out{limit}, {waits(first.failure)}; {_HINT}"
        return Finding(Cause.TIMED_OUT, culprit, (0, 0), text)
    arrived = [one for one in evidence.testimonies.values() if _submitted(one) >= sequence]
    late = [one for one in evidence.testimonies.values() if _submitted(one) < sequence]
    parts = []
    troubles = _troubles(proposals)
    if evidence.absent:
        parts.append(_absent(evidence, troubles))
    if late:
        parts.append(f"{_late(evidence, late)} not arrived")
    if arrived:
        verb = "have" if len(arrived) > 1 else "has"
        here = [one.rank for one in arrived]
        histories = {one.rank: past_calls(one.report) for one in arrived}
        parts.append(f"{ranks(here)} {verb} arrived{sites_of(histories, sequence, here)}")
    slowest = _slowest(arrived, sequence)
    if slowest is not None:
        parts.append(_position(slowest))
    parts += troubles
    culprit = _culprit(evidence, late, slowest, proposals)
    text = f"Timed out{limit}: {'; '.join(parts)}; {_HINT}"
    return Finding(Cause.TIMED_OUT, culprit, (sequence, fingerprint), text)


def waits(failure: Failure) -> str:
    """Say where a call stood when its time was up, and what for."""
    if failure.half_done:
        what = "a message was half-way when its time was up"
    elif failure.waiting_for:
        what = f"waiting for {ranks(failure.waiting_for)} at {failure.stage}"
    else:
        what = f"at {failure.stage}"
    return "; ".join([what, *_paths(failure)])


def _paths(failure: Failure) -> list[str]:
    """Name the connections that are down or unanswered, by rank."""
    by_rank: dict[int, list[str]] = {}
    for path in failure.paths:
        by_rank.setdefault(path.rank, []).append(str(path))
    return [f"to rank {rank}: {', '.join(some)}" for rank, some in by_rank.items()]


def _troubles(proposals: list[Proposal]) -> list[str]:
    by_reporter = {one.reporter: "; ".join(_paths(one.failure)) for one in proposals}
    return [f"rank {reporter}, {what}" for reporter, what in sorted(by_reporter.items()) if what]


def _limit(evidence: Evidence, proposals: list[Proposal]) -> str:
    limits_s = [evidence.testimonies[one.reporter].timeout_s for one in proposals]
    limit_s = min((one for one in limits_s if one), default=0.0)
    return f" after {limit_s:g} s" if limit_s else ""


def _submitted(testimony: Testimony) -> int:
    return int(testimony.progress.get("submitted", 0))


def _absent(evidence: Evidence, troubles: list[str]) -> str:
    names = [
        f"{evidence.who(rank)} is {_state(rank, why, troubles)}"
        for rank, why in sorted(evidence.absent.items())
    ]
    if len(names) > _MAX_NAMED:
        rest = len(names) - _MAX_NAMED
        names = [*names[:_MAX_NAMED], f"{rest} more are silent"]
    return listing(names)


def _state(rank: int, why: str, troubles: list[str]) -> str:
    if not why.startswith(("silent", "no")):
        return why
    # The kernel of a stopped process still answers.
    out_of_reach = any(f"to rank {rank}: " in trouble for trouble in troubles)
    return f"{'out of reach' if out_of_reach else 'stopped, or busy without a break'}: {why}"


def _late(evidence: Evidence, late: list[Testimony]) -> str:
    names = [f"{evidence.who(one.rank)}, which is {_occupation(one)}" for one in late]
    if len(names) > _MAX_NAMED:
        names = [*names[:_MAX_NAMED], f"{len(names) - _MAX_NAMED} more"]
    return f"{listing(names)}, {'has' if len(late) == 1 else 'have'}"


def _occupation(testimony: Testimony) -> str:
    """Say what a rank does instead."""
    if testimony.sequence:
        call = named(testimony.sequence, testimony.fingerprint).removesuffix(": ")
        return f"still in {call}"
    if testimony.elsewhere:
        return f"in {listing(list(testimony.elsewhere))}"
    if testimony.progress.get("num_transfers"):
        return "in a send or recv"
    return "computing"


def _slowest(arrived: list[Testimony], sequence: int) -> Testimony | None:
    in_it = [one for one in arrived if one.sequence == sequence]
    return min(in_it, key=lambda one: (one.progress.get("bytes_done", 0), one.rank), default=None)


def _position(slowest: Testimony) -> str:
    made = slowest.progress
    waits = made.get("waiting_for") or []
    return (
        f"the slowest of them, rank {slowest.rank}, is at {stage_of(made)}, "
        f"with {made.get('bytes_done', 0)} of {made.get('bytes_total', 0)} bytes done"
        + (f", waiting for {ranks(waits)}" if waits else "")
    )


def stage_of(progress: Mapping[str, Any]) -> Stage:
    """Read where a call stands from a rank's progress."""
    return Stage(*(progress.get(name, default) for name, default in vars(Stage()).items()))


def _culprit(
    evidence: Evidence,
    late: list[Testimony],
    slowest: Testimony | None,
    proposals: list[Proposal],
) -> int | None:
    # Who is silent may be what those who are late wait for, while they open a group, say.
    missing = list(evidence.absent) or [one.rank for one in late]
    if missing:
        return min(missing)
    waits = (slowest.progress.get("waiting_for") or []) if slowest is not None else []
    blamed = [*waits, *(one.rank for one in proposals if one.rank >= 0)]
    return blamed[0] if blamed else None
