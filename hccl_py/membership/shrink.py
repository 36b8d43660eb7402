"""Going on without some of the ranks: those that are left agree on it and connect anew.

    gather    who comes in time is a member; ranks that are known to be dead are not waited for
    decide    may they go on? Every member answers from the same facts, so all answer alike
    connect   a new communicator, through the store of the old one's coordinator
    confirm   all of them are connected, or none: if one was lost meanwhile, once more from the top

Two groups can never both go on. Dead is a rank only if its process is known to have ended; of all
others that nobody excluded, more than half have to be members, or half of them with the lowest. A
rank that is cut off, was stopped, or comes late therefore finds itself in the minority, or in a
decision without it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.errors import BootstrapError, HcclError, InvalidArgumentError

_CONFIRM_S = 2.0
"""How much later than its neighbours a rank may be done with connecting."""


class Connected(Protocol):
    """What `connect` returns: the part of a communicator that is needed here."""

    def close(self) -> None:
        """Close it again."""


Made = TypeVar("Made", bound=Connected)

Connect = Callable[[StoreClient, int, int], Made]
"""Makes a communicator of a store, a rank and a world size."""


@dataclass(frozen=True)
class Departed:
    """A communicator that some ranks are to leave, or have left, as one rank of it sees it.

    Attributes:
        rank: this rank.
        world_size: ranks before.
        number: of this shrink; each starts an agreement of its own.
        coordination: of the old communicator.
        gone: the ranks that ended, and whether they said goodbye.
    """

    rank: int
    world_size: int
    number: int
    coordination: Coordination
    gone: Callable[[], Iterable[tuple[int, bool, int]]]

    def dead(self) -> list[int]:
        """List the ranks whose process has ended without a goodbye."""
        return [rank for rank, left, _ in self.gone() if not left]


def check_excluded(old_size: int, rank: int, exclude: Iterable[int]) -> list[int]:
    """Return the ranks to exclude, in order.

    Raises:
        InvalidArgumentError: one is no rank, or this one.
    """
    excluded = sorted(set(exclude))
    for one in excluded:
        if one not in range(old_size):
            raise InvalidArgumentError(f"exclude: expected ranks of 0..{old_size - 1}, got {one!r}")
    if rank in excluded:
        raise InvalidArgumentError(
            f"exclude: rank {rank} is this rank; ranks that are excluded do not call shrink"
        )
    return excluded


def regroup(
    old: Departed, exclude: Sequence[int], timeout_s: float, connect: Connect[Made]
) -> tuple[Made, list[int]]:
    """Return a communicator of the ranks that are left, and who they are: on all of them alike.

    Args:
        old: what they leave.
        exclude: ranks that shall not be members; alike on all.
        timeout_s: how long ranks that are not known to be dead are waited for, and how long
            connecting may take.
        connect: makes the new communicator.

    Raises:
        BootstrapError: this rank was left out, too few came, they disagree, or they could not
            connect. On all members alike.
    """
    awaited = [rank for rank in range(old.world_size) if rank not in exclude]
    for attempt in range(old.world_size):  # each but the first because a member was lost
        key = f"shrink/{old.number}/{attempt}"
        members = _gather(old, key, awaited, exclude, timeout_s)
        made, problem = None, ""
        try:
            store = old.coordination.store(f"{key}/", timeout_s, partial(_lost, old, members))
            made = connect(store, members.index(old.rank), len(members))
        except HcclError as error:
            problem = f"rank {old.rank}: {error}"
        try:
            confirmed = old.coordination.agree(
                f"{key}/connected", problem, timeout_s + _CONFIRM_S, among=members
            )
        except BaseException:  # nobody answers, or Ctrl-C: the caller never gets what was made
            if made is not None:
                made.close()
            raise
        lost = [rank for rank in members if rank not in confirmed]
        if made is not None and not lost and not any(confirmed.values()):
            return made, members
        if made is not None:
            made.close()
        if old.rank in lost:
            raise BootstrapError(_too_late(old, confirmed))
        if not lost:
            first = next(text for text in confirmed.values() if text)
            raise BootstrapError(f"shrink: the ranks that are left could not connect: {first}")
        awaited = [rank for rank in members if rank not in lost]
    raise BootstrapError("shrink: nobody is left")


def _gather(
    old: Departed, key: str, awaited: Sequence[int], exclude: Sequence[int], timeout_s: float
) -> list[int]:
    """Agree with all others on who comes, and on whether these may go on."""
    mine = {"exclude": list(exclude), "dead": old.dead()}
    answers = old.coordination.agree(key, mine, timeout_s, among=awaited)
    # Who is excluded by anybody is out, and has no say: it may be a rank that went astray.
    named = {rank for answer in answers.values() for rank in answer["exclude"]}
    members = sorted(answers.keys() - named)
    if old.rank not in members:
        raise BootstrapError(_too_late(old, members))
    for rank in members:
        if answers[rank]["exclude"] != answers[members[0]]["exclude"]:
            raise BootstrapError(
                f"shrink: ranks disagree on whom to exclude: rank {members[0]} says "
                f"{answers[members[0]]['exclude']}, rank {rank} says {answers[rank]['exclude']}"
            )
    _decide(old, members, {*named, *(dead for rank in members for dead in answers[rank]["dead"])})
    return members


def _decide(old: Departed, members: Sequence[int], gone: set[int]) -> None:
    """Raise unless the members are the only ones who can think that they go on."""
    voters = sorted({*members, *range(old.world_size)} - (gone - {*members}))
    if 2 * len(members) > len(voters):
        return
    if 2 * len(members) == len(voters) and voters[0] in members:
        return
    absent = [rank for rank in voters if rank not in members]
    raise BootstrapError(
        f"shrink: only {_ranks(members)} of {len(voters)} ranks that may be alive came; "
        f"{_ranks(absent)} may have gone on without this one, and two groups must not: more than "
        "half are needed, or half with the lowest rank. If you know that they are gone, name them "
        "in `exclude`"
    )


def _lost(old: Departed, members: Sequence[int]) -> str:
    """Say which member is lost, so that waiting is in vain; "" while all are there."""
    lost = [rank for rank, _, _ in old.gone() if rank in members]
    return f"{_ranks(lost)} (of the old communicator) ended meanwhile" if lost else ""


def _too_late(old: Departed, came: Iterable[int]) -> str:
    return (
        f"shrink: rank {old.rank} was left out: {_ranks(sorted(came))} decided without it, because "
        "it was excluded or did not come in time; it has no part in what they do now and should end"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
