"""Checks that all ranks of each communicator have recorded the same calls.

The engine has compared the calls of a block as they ran. Ranks may still differ in the begin and
end of blocks.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from hccl_py.calls.collectives import Collectives
from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.calls.recording import Recording
from hccl_py.calls.work import Work
from hccl_py.diagnosis.reports import ranks
from hccl_py.fingerprint import describe
from hccl_py.transport import _core
from hccl_py.transport.errors import MismatchError

Numbers = npt.NDArray[np.uint64]


def require_agreement(recording: Recording) -> None:
    """Raise MismatchError on all ranks of a communicator if two recorded different calls.

    Sends and recvs are not compared. The communicators are compared at the same time, so ranks may
    use them in any order.
    """
    recorded: dict[CommunicatorState, list[int]] = {}
    for one in recording.calls:
        if isinstance(one.call, _core.Prepared) and one.state.world_size > 1:
            recorded.setdefault(one.state, []).append(one.call.fingerprint)
    sums = {state: _gather(state, _summary(calls)) for state, calls in recorded.items()}
    for _, work in sums.values():
        _wait(work)
    for state, (gathered, _) in sums.items():
        if len(np.unique(gathered, axis=0)) > 1:
            raise _difference(state, recorded[state], int(gathered[:, 0].max()))


def _summary(calls: list[int]) -> Numbers:
    data = np.array(calls, np.uint64).tobytes()
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return np.array([len(calls), int.from_bytes(digest, "little")], np.uint64)


def _gather(state: CommunicatorState, mine: Numbers) -> tuple[Numbers, Work]:
    gathered = np.empty((state.world_size, mine.size), np.uint64)
    nonblocking: Collectives[Work] = Collectives(state, blocking=False)
    return gathered, nonblocking.all_gather(gathered, mine)


def _wait(work: Work) -> None:
    try:
        work.wait()
    except MismatchError as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(
                "the all_gather of this rank is the end of its hccl_py.capture() block: begin and "
                "end the block at the same calls on all ranks"
            )
        raise


def _difference(state: CommunicatorState, calls: list[int], most_calls: int) -> MismatchError:
    """Return the error that names the first call that differs; all ranks return the same."""
    mine = np.zeros(most_calls, np.uint64)
    mine[: len(calls)] = calls
    gathered, work = _gather(state, mine)
    work.wait()
    first = next(call for call in range(most_calls) if len(np.unique(gathered[:, call])) > 1)
    members: dict[int, list[int]] = {}
    for rank, fingerprint in enumerate(gathered[:, first].tolist()):
        members.setdefault(fingerprint, []).append(rank)
    # As for mismatched calls: the smallest group is the cause; among equals the one without rank 0.
    ordered = sorted(members, key=lambda one: (len(members[one]), 0 in members[one]))
    parts = [f"{describe(one) if one else 'no call'} on {ranks(members[one])}" for one in ordered]
    error = MismatchError(
        f"[{state.name}, rank {state.rank} of {state.world_size}] hccl_py.capture(): ranks "
        f"recorded different calls: call {first + 1} of the block is {', '.join(parts)}; begin and "
        "end the block at the same calls on all ranks. The communicator stays open"
    )
    error.rank, error.cause = members[ordered[0]][0], "mismatch"
    return error
