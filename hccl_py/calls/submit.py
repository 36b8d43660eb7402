"""Submits calls that Python has checked to the engine, blocking or in the background.

`csrc/bindings/calls/call_entry.cc` makes most calls instead, without a Python frame.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hccl_py.calls.call_group import CALLS, Deferred
from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.calls.recording import CAPTURES, RecordedCall, run_recorded
from hccl_py.calls.work import NotBegun, Work
from hccl_py.fingerprint import Transfer, describe
from hccl_py.memory.at_once import Access
from hccl_py.memory.element_types import Span
from hccl_py.transport import _core

Result = TypeVar("Result", covariant=True)

_ENGINE = _core.Communicator


class CheckedCall(NamedTuple):
    """A call with checked arguments.

    Attributes:
        call: the plan of a collective, or a send or recv.
        limit_s: its timeout.
        read: memory that it reads.
        written: memory that it writes; in place this is `read`.
        buffers: the caller's objects.
        residual: address of an ErrorFeedback's residual; 0: none.
    """

    call: _core.Prepared | Transfer
    limit_s: float
    read: Sequence[Span]
    written: Sequence[Span]
    buffers: object
    residual: int = 0

    def made(self, core: _core.Communicator) -> _core.UnsubmittedCall:
        """Return the engine's call, which keeps the memory at its addresses alive."""
        read, written = self.read, self.written
        if isinstance(self.call, Transfer):
            (span,) = *read, *written
            return core.make_transfer(self.call, self.limit_s, span.address, self)
        given = [(span.address, span.num_bytes) for span in read]
        taken = [(span.address, span.num_bytes) for span in written]
        return core.make_collective(self.call, self.limit_s, given, taken, self.residual, self)

    def access(self, state: CommunicatorState) -> Access:
        """Return its memory access; the collectives of a communicator run one by one."""
        order = object() if isinstance(self.call, Transfer) else state
        return Access(describe(self.call), order, self.written, self.read)


class Submits(Protocol[Result]):
    """An object that accepts checked calls."""

    def submit(self, checked: CheckedCall) -> Result:
        """Make the call."""


class Submitter(Generic[Result]):
    """Submits calls of one communicator to its engine, all of them blocking or none."""

    def __init__(self, state: CommunicatorState, blocking: bool) -> None:
        self._state = state
        self._blocking = blocking

    def submit(self, checked: CheckedCall) -> Result:
        """Make a call: return None if calls block, else a Work."""
        if CALLS and self._state.in_groups and get_ident() in CALLS:
            return self._collect(checked)
        started = self._begin(_ENGINE.run if self._blocking else _ENGINE.start, checked)
        if started is None:
            return None  # type: ignore[return-value]
        return Work(  # type: ignore[return-value]
            started, self._state.errors, checked.limit_s, checked.call
        )

    def _collect(self, checked: CheckedCall) -> Result:
        work = Work(NotBegun(), self._state.errors, checked.limit_s, checked.call)
        begin = partial(self._begin, _ENGINE.queue, checked)
        access = checked.access(self._state)
        CALLS[get_ident()].append(Deferred(begin, work, self._blocking, access))
        return None if self._blocking else work  # type: ignore[return-value]

    def _begin(self, issue: Callable[..., Any], checked: CheckedCall) -> Any:
        state = self._state
        core = state.require_engine()
        sites = state.recorder.sites
        if sites.are_noted and not isinstance(checked.call, Transfer):
            sites.note(core.sequence() + 1)
        start = partial(issue, core, checked.made(core))
        try:
            if CAPTURES and get_ident() in CAPTURES:
                call, limit_s, *_, buffers, _ = checked
                recorded = RecordedCall(state, call, limit_s, buffers, checked.made(core))
                return run_recorded(recorded, start)
            return start()
        except _core.CommunicatorFailed as failure:
            raised = state.errors.of_call(failure, checked.limit_s, checked.call)
            del core, start  # the traceback of an exception must not keep the engine
            raise raised from None
