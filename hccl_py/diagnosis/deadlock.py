"""Ranks that wait for each other in different communicators.

A rank with one thread that is blocked in a call of one group cannot come to a call of another. If
the one it waits for is blocked likewise, and waits for the first, directly or through others, then
nobody will ever come: the groups' calls were made in different orders. A program with several
threads is never accused: another of them might come.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.other_calls import STATE
from hccl_py.diagnosis.record import Cause
from hccl_py.diagnosis.reports import Evidence, Testimony
from hccl_py.fingerprint import describe, without_number

_MIN_LOOKS = 8  # heartbeats without any progress: two seconds
_HINT = "all ranks must make the calls of different groups in the same order"


def tell_deadlock(evidence: Evidence) -> Finding | None:
    """Find a cycle that leads through more than one communicator."""
    for cause in Cause:
        if cause is not Cause.TIMED_OUT and evidence.proposals(cause):
            return None
    stuck = {rank: one for rank, one in evidence.testimonies.items() if _state(one).get("single")}
    edges = {rank: list(_waits_for(one, stuck, evidence)) for rank, one in stuck.items()}
    for start in sorted(edges):
        cycle = _cycle_from(start, edges)
        here = [rank for rank in cycle if _is_here(stuck[rank])]
        if here and len(here) < len(cycle):
            return _finding(evidence, cycle, here[0])
    return None


def _state(testimony: Testimony) -> Mapping[str, Any]:
    state = testimony.report.get(STATE)
    return state if isinstance(state, Mapping) else {}


def _is_here(testimony: Testimony) -> bool:
    """Whether the rank is stuck in a call of the communicator that this is about."""
    state = _state(testimony)
    return bool(testimony.sequence and state["blocked"] and state["looks"] >= _MIN_LOOKS)


def _elsewhere(testimony: Testimony) -> Mapping[str, Any] | None:
    """Return what the rank is stuck in instead."""
    for other in _state(testimony)["elsewhere"]:
        if other["blocked"] and other["looks"] >= _MIN_LOOKS:
            return other  # type: ignore[no-any-return]
    return None


def _waits_for(
    testimony: Testimony, stuck: Mapping[int, Testimony], evidence: Evidence
) -> Iterator[int]:
    """List the stuck ranks that have not come to the call which a stuck rank is in."""
    if _is_here(testimony):
        for rank in testimony.progress.get("waiting_for") or ():
            other = stuck.get(rank)
            if other is not None and other.progress["submitted"] < testimony.sequence:
                yield rank
        return
    elsewhere = _elsewhere(testimony)
    if elsewhere is None:
        return
    places = {tuple(place) for place in elsewhere["waits"]}
    for rank, other in stuck.items():
        in_it = any(one["id"] == elsewhere["id"] for one in _state(other)["elsewhere"])
        if tuple(evidence.places[rank]) in places and not in_it:
            yield rank


def _cycle_from(start: int, edges: Mapping[int, list[int]]) -> list[int]:
    """Return the ranks of a cycle through `start`, in order; empty if there is none."""
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


def _finding(evidence: Evidence, cycle: list[int], first: int) -> Finding:
    at = cycle.index(first)
    ordered = [*cycle[at:], *cycle[:at]]
    parts = []
    also = []
    for rank, next_rank in zip(ordered, [*ordered[1:], first], strict=True):
        testimony = evidence.testimonies[rank]
        elsewhere = None if _is_here(testimony) else _elsewhere(testimony)
        if elsewhere is None:
            call = describe(without_number(testimony.fingerprint))
            doing = f"{call} number {testimony.sequence} of this group"
        else:
            also.append(elsewhere["id"])
            doing = f"{elsewhere['call']} of group {elsewhere['name']}"
        parts.append(f"{evidence.who(rank)} is in {doing} and waits for rank {next_rank}")
    one = evidence.testimonies[first]
    text = f"ranks wait for each other in different groups: {'; '.join(parts)}; {_HINT}"
    culprit = next(rank for rank in ordered if not _is_here(evidence.testimonies[rank]))
    call_of_first = one.sequence, without_number(one.fingerprint)
    return Finding(Cause.MISMATCH, culprit, call_of_first, text, tuple(also))
