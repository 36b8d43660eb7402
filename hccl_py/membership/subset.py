"""Opening a communicator of some ranks of another one, as a call of that other one.

Ranks that only share a store learn of each other what is in it: who waits for a rank that died
before it came can wait for its whole time. Members of one communicator know more. So they meet in
the store of its coordinator, and whatever ends it, or takes a member away, ends the opening too: on
all of them with the error that every other call of it raises.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hccl_py.communicator_state import CommunicatorState
from hccl_py.diagnosis.reporter import Reporter
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.errors import BootstrapError, CommunicatorError, InvalidArgumentError

Made = TypeVar("Made")
Connect = Callable[[StoreClient | None, int, int], Made]
"""Makes a communicator of a store, a rank and a world size."""

_NEWS_S = 0.3
"""How much later than a connection's end the end of its rank may be known."""
_TURN_S = 0.01


@dataclass(frozen=True)
class Parent:
    """A communicator of which some ranks make another, as one of them sees it.

    Attributes:
        state: names its engine, for as long as it is open: errors keep all this, and no engine.
    """

    state: CommunicatorState
    coordination: Coordination
    reporter: Reporter


def check_members(world_size: int, rank: int, members: Iterable[int]) -> tuple[int, ...]:
    """Return the members, in their order.

    Raises:
        InvalidArgumentError: one is no rank or is there twice, or this rank is not there.
    """
    found = tuple(members)
    for one in found:
        if one not in range(world_size):
            raise InvalidArgumentError(
                f"members: expected ranks of 0..{world_size - 1}, got {one!r}"
            )
    if len(set(found)) != len(found):
        raise InvalidArgumentError(f"members: expected each rank once, got {list(found)}")
    if rank not in found:
        raise InvalidArgumentError(
            f"members: rank {rank} is this rank, and not one of {list(found)}; only members call"
        )
    return found


def open_group(
    parent: Parent, members: Sequence[int], key: str, timeout_s: float, connect: Connect[Made]
) -> Made:
    """Connect the members of a group, or raise what befell the parent meanwhile.

    Args:
        parent: knows all of them.
        members: its ranks, this one included.
        key: of the group in the coordinator's store; each is used once.
        timeout_s: how long the store may be silent.
        connect: makes the communicator.

    Raises:
        CommunicatorError: the parent failed, or a member died or left before all were connected.
        BootstrapError: a member did not come in time, or could not be connected.
    """

    def hopeless() -> str:
        return _trouble(parent, members)

    def hopeless_to_connect() -> str:
        # Who has connected to all may have left the parent before others have.
        return _trouble(parent, members, leaving_counts=False)

    store = parent.coordination.store(f"{key}/", timeout_s, hopeless)
    store.hopeless_to_connect = hopeless_to_connect
    try:
        made = connect(store, members.index(parent.state.rank), len(members))
    except BootstrapError as error:
        failure = _failure(parent, members)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure  # whose traceback knows this frame
    store.hopeless = store.hopeless_to_connect = None  # the new communicator outlives the parent
    return made


def _trouble(parent: Parent, members: Sequence[int], leaving_counts: bool = True) -> str:
    """Say why it is in vain to wait for the members; "" if it is not."""
    parent.state.require_engine().poll()
    if parent.state.core.failed():
        return f"the communicator {parent.state.name} failed"
    gone = [
        rank
        for rank, left, _ in parent.reporter.ended_ranks()
        if rank in members and (leaving_counts or not left)
    ]
    if not gone:
        return ""
    parent.reporter.report_ended(gone[0])
    return f"rank {gone[0]} of the communicator {parent.state.name} is gone"


def _failure(parent: Parent, members: Sequence[int]) -> CommunicatorError | None:
    """Return the parent's failure, if that is why its members did not come together."""
    limit_s = time.monotonic() + _NEWS_S
    while not _trouble(parent, members):
        if time.monotonic() > limit_s:
            return None
        time.sleep(_TURN_S)
    parent.reporter.await_diagnosis()
    failure = parent.state.core.failure()
    if failure is None:  # no coordinator is left to decide
        return None
    return parent.state.errors.of_failure(failure)
