"""Shrinking: the remaining ranks agree on their members and connect anew.

    gather    ranks that arrive in time are members; known dead ranks are not awaited
    decide    may they continue? Every member decides alike, from the same facts
    connect   a new communicator, through the store of the old one's coordinator
    confirm   all of them are connected, or none: if one was lost, start again

Two groups can never both continue. A rank is gone only if its process is known to have ended, or if
it closed the communicator without having shrunk or grown it. Of all other ranks that are not
excluded, more than half must be members, or half of them with the lowest. So a rank that is cut
off, stopped or late is in the minority, or left out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.diagnosis.reports import ranks
from hccl_py.membership.subset import Connect, Made, check_ranks
from hccl_py.transport.errors import BootstrapError, HcclError, InvalidArgumentError

_CONFIRM_S = 2.0
"""How much later than its neighbours a rank may finish connecting."""


class _MinorityError(BootstrapError):
    """Another group could continue too."""


def check_excluded(world_size: int, rank: int, exclude: Iterable[int]) -> list[int]:
    """Return the ranks to exclude, in order, or raise InvalidArgumentError."""
    excluded = sorted(set(check_ranks("exclude", world_size, exclude)))
    if rank in excluded:
        raise InvalidArgumentError(
            f"exclude: rank {rank} is this rank; ranks that are excluded do not call shrink"
        )
    return excluded


def regroup(
    old: CommunicatorState,
    number: int,
    exclude: Sequence[int],
    timeout_s: float,
    connect: Connect[Made],
) -> tuple[Made, list[int]]:
    """Return a communicator of the remaining ranks, and their old ranks; equal on all.

    `number` counts the shrinks: each starts its own agreement. `timeout_s` limits the wait for
    ranks that are not known to be dead, and the time to connect.

    Raises BootstrapError if this rank was left out, and on all members if too few arrived, they
    disagree, or they could not connect.
    """
    coordination = old.coordination
    if coordination is None:
        return connect(None, 0, 1), [0]
    me, world_size = old.rank, old.world_size
    awaited = [rank for rank in range(world_size) if rank not in exclude]
    is_repeated = False
    for attempt in range(world_size + 1):  # repeated when a member was lost
        key = f"shrink/{number}/{attempt}"
        mine = {"exclude": list(exclude), "gone": old.reporter.gone_ranks()}
        answers = coordination.agree(key, mine, timeout_s, among=awaited)
        try:
            members = _members(me, world_size, answers)
        except _MinorityError:
            # Ranks that died meanwhile are in nobody's answer. All have the same answers.
            if is_repeated:
                raise
            is_repeated, awaited = True, list(answers)
            continue
        problem = ""
        with ExitStack() as undo:
            try:
                store = coordination.store(f"{key}/", timeout_s, partial(_lost, old, members))
                made = connect(store, members.index(me), len(members))
                undo.callback(made.close)
            except HcclError as error:
                problem = f"rank {me}: {error}"
            confirmed = coordination.agree(
                f"{key}/connected", problem, timeout_s + _CONFIRM_S, among=members
            )
            lost = [rank for rank in members if rank not in confirmed]
            if not lost and not any(confirmed.values()):
                undo.pop_all()
                coordination.leave_store(f"{key}/", len(members))
                old.goes_on = True
                return made, members
        if me in lost:
            raise BootstrapError(_too_late(me, confirmed))
        if not lost:
            first = next(text for text in confirmed.values() if text)
            raise BootstrapError(f"shrink: the ranks that are left could not connect: {first}")
        awaited = [rank for rank in members if rank not in lost]
    raise BootstrapError("shrink: no rank is left")


def _members(me: int, world_size: int, answers: Mapping[int, Any]) -> list[int]:
    # A rank that any other excludes is out, and its own list does not count.
    named = {rank for answer in answers.values() for rank in answer["exclude"]}
    members = sorted(answers.keys() - named)
    if me not in members:
        raise BootstrapError(_too_late(me, members))
    for rank in members:
        if answers[rank]["exclude"] != answers[members[0]]["exclude"]:
            raise BootstrapError(
                f"shrink: ranks disagree on whom to exclude: rank {members[0]} says "
                f"{answers[members[0]]['exclude']}, rank {rank} says {answers[rank]['exclude']}"
            )
    ended = {*named, *(one for rank in members for one in answers[rank]["gone"])}
    voters = sorted({*members, *range(world_size)} - (ended - {*members}))
    if 2 * len(members) + (voters[0] in members) > len(voters):
        return members
    absent = [rank for rank in voters if rank not in members]
    raise _MinorityError(
        f"shrink: only {ranks(members)} of {len(voters)} ranks that may be alive came; "
        f"{ranks(absent)} may have gone on without this one, and two groups must not: more than "
        "half are needed, or half with the lowest rank. If you know that they have ended, name "
        "them in `exclude`"
    )


def _lost(old: CommunicatorState, members: Sequence[int]) -> str:
    """Return which member is lost, so that waiting is hopeless; "" while all are there."""
    lost = [rank for rank, _, _ in old.reporter.ended_ranks() if rank in members]
    return f"{ranks(lost)} (of the old communicator) ended meanwhile" if lost else ""


def _too_late(me: int, came: Collection[int]) -> str:
    if not came:
        return (
            f"shrink: rank {me} came when the time to answer was over, and no other rank had; give "
            "all ranks a longer timeout_s, or end"
        )
    return (
        f"shrink: rank {me} was left out: {ranks(came)} decided without it, because "
        "it was excluded or did not come in time; it has no part in what they do now and should end"
    )
