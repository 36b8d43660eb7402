"""The calls of a thread inside `hccl_py.capture()`, recorded as they run.

A replay makes the same calls in the same order. The program also waited between them, in every
blocking call and every `wait()` of a Work. A call after such a wait must not begin before it in a
replay. The engine runs the collectives of one communicator in order, so only a change of
communicator, and a send or recv, need their own step.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any, NamedTuple

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.fingerprint import Call, Transfer
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError


class RecordedCall(NamedTuple):
    """A call of a graph; `buffers` are the caller's, `native` is the call that a replay issues."""

    state: CommunicatorState
    call: Call
    limit_s: float
    buffers: object
    native: _core.UnsubmittedCall


@dataclass
class Step:
    """Calls of one communicator that are submitted together; see `csrc/engine/graph/graph.h`."""

    state: CommunicatorState
    first: int
    last: int
    awaited: list[int]
    blocks: bool = False


@dataclass
class Recording:
    """The calls of one block so far."""

    calls: list[RecordedCall] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    is_open: bool = True
    # The calls that the program has waited for since the last step. The last collective of a
    # communicator stands for all before it.
    _awaited: dict[object, int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)  # a future's thread may also wait

    def add(self, recorded: RecordedCall) -> int:
        """Record a call that has begun; return its number."""
        with self._lock:
            number = len(self.calls)
            self.calls.append(recorded)
            late = [one for one in self._awaited.values() if self._must_end(one, number)]
            last = self.steps[-1] if self.steps else None
            if late or last is None or last.state is not recorded.state:
                self._begin_step(number, late)
            self.steps[-1].last = number + 1
        return number

    def note_wait(self, number: int) -> None:
        """Record that the program has waited for a call."""
        with self._lock:
            if self.is_open:
                key = self._order_of(number)
                self._awaited[key] = max(number, self._awaited.get(key, 0))

    def _order_of(self, number: int) -> object:
        """Return a key that is equal for calls that the engine runs in order."""
        one = self.calls[number]
        return number if isinstance(one.call, Transfer) else one.state

    def _must_end(self, earlier: int, later: int) -> bool:
        """Return whether this later call could overtake an awaited one."""
        return self._order_of(earlier) != self._order_of(later)

    def _is_awaited(self, number: int) -> bool:
        return self._awaited.get(self._order_of(number), -1) >= number

    def _begin_step(self, number: int, late: list[int]) -> None:
        awaited = late
        if late:
            ending = self.steps[-1]
            inside = range(ending.first, ending.last)
            if all(map(self._is_awaited, inside)):
                ending.blocks = True  # faster than a wait for each
                awaited = [one for one in late if one not in inside]
        for one in late:
            del self._awaited[self._order_of(one)]
        self.steps.append(Step(self.calls[number].state, number, number, awaited))


class CapturedWork:
    """The engine's Work of a call in a block: a wait for it orders later calls."""

    def __init__(self, native: _core.Work, recording: Recording, number: int) -> None:
        self._native = native
        self._recording = recording
        self._number = number

    def wait(self, timeout_s: float) -> bool:
        """Wait as the engine's Work does."""
        finished = self._native.wait(timeout_s)
        if finished:
            self._recording.note_wait(self._number)
        return finished

    def done(self) -> bool:
        """Return whether the call has ended; a program may rely on it like on a wait."""
        done = self._native.done()
        if done:
            self._recording.note_wait(self._number)
        return done

    def failed(self) -> bool:
        """Return whether the call failed."""
        return self._native.failed()

    def source(self) -> int:
        """Return the source rank of a recv, -1 for other calls."""
        return self._native.source()


GUARDS: list[Callable[[], AbstractContextManager[object]]] = []
"""Contexts that a block also enters: they reject calls that a replay would omit."""

CAPTURES: dict[int, Recording] = {}
"""Recordings by thread. Each thread changes its own entry only."""


def recording_here() -> Recording | None:
    """Return the recording of this thread."""
    return CAPTURES.get(get_ident()) if CAPTURES else None


def reject_in_capture(what: str, instead: str) -> None:
    """Raise InvalidArgumentError if this thread is in a block: a replay could not do `what`."""
    if recording_here() is not None:
        raise InvalidArgumentError(f"hccl_py.capture(): a replay cannot repeat {what}; {instead}")


def run_recorded(recorded: RecordedCall, started: Callable[[], Any]) -> Any:
    """Make and record a call; return the result of `started`, with CapturedWork for Work."""
    recording = CAPTURES[get_ident()]
    native = started()
    number = recording.add(recorded)
    if native is None:
        recording.note_wait(number)
        return None
    return CapturedWork(native, recording, number)
