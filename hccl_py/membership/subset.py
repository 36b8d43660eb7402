"""Opens a communicator of some ranks of another one, as a call of its parent; also by colour.

The members meet in the store of the parent's coordinator. A failure of the parent, or the end of a
member, ends the opening on all members, with the error of every other call of the parent. With only
a shared store, ranks would wait for a dead member until their timeout.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.diagnosis.reporter import DIAGNOSIS_TIMEOUT_S
from hccl_py.transport._core import Cause
from hccl_py.transport.arguments import whole_numbers, wrong
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.deadline import pause
from hccl_py.transport.errors import BootstrapError, CommunicatorError, InvalidArgumentError
from hccl_py.transport.network.secret import read_secret


class Closable(Protocol):
    """An opened communicator, whose class is in a layer above."""

    def close(self) -> None:
        """Free everything."""


Made = TypeVar("Made", bound=Closable)
Connect = Callable[[StoreClient | None, int, int], Made]
"""Makes a communicator from a store, a rank and a world size."""

_TURN_S = 0.01
_ENDED = "of the communicator"
"""Part of the error of a rank that gave up because a member ended."""
_MOST = 1 << 62  # largest colour and key


def check_ranks(name: str, world_size: int, ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks of the argument `name`, or raise InvalidArgumentError."""
    return whole_numbers(name, ranks, f"ranks of 0..{world_size - 1}", range(world_size))


def check_members(world_size: int, rank: int, members: Iterable[int]) -> tuple[int, ...]:
    """Return the members, in their order, or raise InvalidArgumentError."""
    found = check_ranks("members", world_size, members)
    if len(set(found)) != len(found):
        raise InvalidArgumentError(f"members: expected each rank once, got {list(found)}")
    if rank not in found:
        raise InvalidArgumentError(
            f"members: rank {rank} is this rank, and not one of {list(found)}; only members call"
        )
    return found


def open_group(
    parent: CommunicatorState,
    members: Sequence[int],
    key: str,
    timeout_s: float,
    connect: Connect[Made],
) -> Made:
    """Connect the members of a group, or raise the parent's failure.

    `key` names the group in the coordinator's store, and is used once; `timeout_s` is how long the
    store may be silent.

    Raises:
        CommunicatorError: the parent failed, or a member died or left before all were connected.
        BootstrapError: a member did not arrive in time, or could not be connected.
    """
    if parent.coordination is None or len(members) == 1:
        parent.require_engine()
        return connect(None, 0, 1)
    store = parent.coordination.store(f"{key}/", timeout_s, lambda: trouble_of(parent, members))
    # A connected member may leave the parent before the others are connected.
    store.hopeless_to_connect = lambda: trouble_of(parent, members, leaving_counts=False)
    try:
        made = connect(store, members.index(parent.rank), len(members))
    except BootstrapError as error:
        failure = failure_of(parent, members, error)
        if failure is None:
            raise
        cause = _why_one_left(parent, members, key)
        if cause:
            raise BootstrapError(f"rank {members.index(parent.rank)}: {cause}") from error
        try:
            raise failure from error
        finally:
            del failure  # its traceback refers to this frame
    finally:
        parent.coordination.leave_store(f"{key}/", len(members))
    store.hopeless = store.hopeless_to_connect = None  # the new communicator outlives the parent
    return made


def trouble_of(
    parent: CommunicatorState, members: Sequence[int], leaving_counts: bool = True
) -> str:
    """Return why waiting for the members is hopeless; "" if it is not."""
    ended = ended_members(parent, members)
    if parent.require_engine().failed():
        return f"the communicator {parent.name} failed"
    for rank, cause in ended.items():
        if leaving_counts or cause != Cause.LEFT:
            parent.reporter.report_ended(rank)
            return f"rank {rank} {_ENDED} {parent.name} ended"
    return ""


def ended_members(parent: CommunicatorState, members: Sequence[int]) -> dict[int, Cause]:
    """Return the members that ended, and how."""
    core = parent.require_engine()
    core.poll()
    return {one.rank: one.cause for one in core.ended_peers() if one.rank in members}


def _why_one_left(parent: CommunicatorState, members: Sequence[int], key: str) -> str:
    """Return why a member that left could not connect, if it reported that."""
    assert parent.coordination is not None
    if Cause.LEFT not in ended_members(parent, members).values():
        return ""
    store = SealedStore(parent.coordination.store(f"{key}/", DIAGNOSIS_TIMEOUT_S), read_secret())
    return SharedFailure(store, members.index(parent.rank), len(members)).first()


def failure_of(
    parent: CommunicatorState, members: Sequence[int], error: BootstrapError
) -> CommunicatorError | None:
    """Return the parent's failure, if that kept the members from connecting."""
    leaving_counts = _ENDED in str(error)  # a member may leave because of this very error
    limit_s = time.monotonic() + DIAGNOSIS_TIMEOUT_S
    while not trouble_of(parent, members, leaving_counts):
        if time.monotonic() > limit_s:
            return None
        pause(_TURN_S)
    parent.reporter.await_diagnosis()
    failure = parent.require_engine().failure()
    # None: no coordinator is left to decide.
    return None if failure is None else parent.errors.of_failure(failure)


def packed(color: int | None, key: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Pack a rank's choice for the others: whether it has no colour, colour, key."""
    for name, number in (("color", 0 if color is None else color), ("key", key)):
        if not isinstance(number, int | np.integer) or not -_MOST <= number <= _MOST:
            or_none = " or None" * (name == "color")
            raise wrong(name, f"a whole number of at most 2^62{or_none}", number)
    return np.array([color is None, color or 0, key], np.int64)


def part_of(rank: int, choices: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Sequence[int]:
    """Return the ranks of this rank's colour, by key and then by rank; none if it has no colour."""
    rows = choices.tolist()
    if rows[rank][0]:
        return ()
    same = [one for one, row in enumerate(rows) if row[:2] == rows[rank][:2]]
    return sorted(same, key=lambda one: rows[one][2])
