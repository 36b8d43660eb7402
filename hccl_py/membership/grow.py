"""Growing: the ranks of a communicator and new processes connect anew, by a unique id.

    request   one rank has the unique id; all learn it, and check that they agree
    connect   old ranks keep their numbers and new ones follow; a death of an old rank ends it
    confirm   all old ranks are connected, or none goes on

All old ranks that live learn the same outcome, also if one dies meanwhile: otherwise some would go
on with the new ranks, and the rest could not shrink without them. New processes know nothing of the
old communicator. They use the id as for any communicator.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.diagnosis.reports import ranks
from hccl_py.membership.environment import report
from hccl_py.membership.subset import Closable, Connect, Made, ended_members, failure_of, trouble_of
from hccl_py.membership.unique_id import UniqueId, store_of_unique_id
from hccl_py.transport.arguments import whole_number
from hccl_py.transport.errors import BootstrapError, HcclError, InvalidArgumentError

_COUNT_BYTES = 8

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def request(unique_id: bytes | None, num_new: int) -> Bytes:
    """Pack what this rank was given, or raise InvalidArgumentError."""
    number = whole_number("num_new", num_new, "at least 1 new rank", range(1, 1 << 31))
    uid = bytes(UniqueId.NUM_BYTES) if unique_id is None else UniqueId(unique_id)
    return np.frombuffer(number.to_bytes(_COUNT_BYTES, "little") + uid, np.uint8)


def open_grown(
    old: CommunicatorState,
    wanted: tuple[bytes | None, int],
    timeout_s: float,
    gather: Callable[[Bytes, Bytes], None],
    connect: Connect[Made],
) -> Made:
    """Agree with the other old ranks, and connect all to the new ones.

    `wanted` are this rank's unique id, or None, and the number of new ranks; `gather` is an
    all_gather of the old ranks. New ranks that wait learn of a failure from ranks that know the id.

    Raises:
        InvalidArgumentError: the arguments are wrong, or differ between ranks.
        CommunicatorError: the old communicator failed, or one of its ranks died.
        BootstrapError: a new rank did not arrive in time, or could not be connected.
    """
    known, num_new = wanted
    mine = request(known, num_new)
    requests = np.empty((old.world_size, mine.size), mine.dtype)
    old.num_grows += 1
    try:
        gather(requests, mine)
        known = _agreed_id(requests)
        with _raising_failure_of(old):
            made = _connect(old, known, num_new, timeout_s, connect)
            known = None  # no new rank waits any more
            _confirm(old, made, timeout_s)
        old.goes_on = True
        return made
    except HcclError as error:
        if old.coordination is not None:
            old.coordination.decline(_key(old), str(error))
        if known is not None:
            report(f"rank {old.rank} did not grow its communicator: {error}", known)
        raise


def _agreed_id(requests: Bytes) -> UniqueId:
    numbers = [int.from_bytes(bytes(row[:_COUNT_BYTES]), "little") for row in requests]
    for rank, number in enumerate(numbers):
        if number != numbers[0]:
            raise InvalidArgumentError(
                f"num_new: expected one number on all ranks; rank 0 has {numbers[0]}, rank {rank} "
                f"has {number}"
            )
    found = {rank: bytes(row[_COUNT_BYTES:]) for rank, row in enumerate(requests)}
    given = {rank: uid for rank, uid in found.items() if any(uid)}
    if len(set(given.values())) != 1:
        who = f"different ones from {ranks(sorted(given))}" if given else "None from every rank"
        raise InvalidArgumentError(
            f"unique_id: expected the id that the new ranks use, from at least one rank, got {who}"
        )
    return UniqueId(next(iter(given.values())))


def _connect(
    old: CommunicatorState,
    unique_id: UniqueId,
    num_new: int,
    timeout_s: float,
    connect: Connect[Made],
) -> Made:
    """Connect the old ranks and the new ones."""
    members = range(old.world_size)
    member = old.rank, old.world_size + num_new
    with store_of_unique_id(
        unique_id, *member, timeout_s, hopeless=lambda: trouble_of(old, members)
    ) as store:
        store.ended = lambda: ended_members(old, members).keys()
        return connect(store, *member)


@contextmanager
def _raising_failure_of(old: CommunicatorState) -> Iterator[None]:
    """Raise the failure of the old communicator in place of the BootstrapError that it caused."""
    try:
        yield
    except BootstrapError as error:
        failure = failure_of(old, range(old.world_size), error)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure  # its traceback refers to this frame


def _key(old: CommunicatorState) -> str:
    return f"grow/{old.num_grows}"


def _confirm(old: CommunicatorState, made: Closable, timeout_s: float) -> None:
    """Return if all old ranks are connected; else close what was made, and raise."""
    if old.coordination is None:
        return
    try:
        problems = old.coordination.agree(_key(old), "", timeout_s)
        lost = [rank for rank in range(old.world_size) if rank not in problems]
        missing = f"{ranks(lost)} did not confirm the connections" if lost else ""
        if problem := next(filter(None, problems.values()), missing):
            raise BootstrapError(problem)
    except BaseException:
        made.close()
        raise
