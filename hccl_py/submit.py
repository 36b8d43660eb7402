"""The one way of a checked call into the engine, to its end or in the background.

Fast path: no group is open in this process, the engine takes the call. Everything else (a group, a
failure, a closed communicator, a deadline that is no number) takes `_collect` or `_error`.
"""

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

from hccl_py.call_group import CALLS, Deferred, access_of
from hccl_py.communicator_state import CommunicatorState
from hccl_py.recording import CAPTURES, run_recorded
from hccl_py.transport import _core
from hccl_py.work import Native, NotBegun, Work

Result = TypeVar("Result", covariant=True)

Entry = Callable[..., Any]
_ENGINE = _core.Communicator
BLOCKING = (
    _ENGINE.run_data,
    _ENGINE.run_blocks,
    _ENGINE.run_equal,
    _ENGINE.run_feedback,
    _ENGINE.run_transfer,
)
"""Run a call on the calling thread and return None; `bindings/calls.cc` says what each takes."""
BACKGROUND = (
    _ENGINE.start_data,
    _ENGINE.start_blocks,
    _ENGINE.start_equal,
    _ENGINE.start_feedback,
    _ENGINE.start_transfer,
)
"""Start a call and return the engine's Work."""
QUEUED = (
    _ENGINE.queue_data,
    _ENGINE.queue_blocks,
    _ENGINE.queue_equal,
    _ENGINE.queue_feedback,
    _ENGINE.queue_transfer,
)
"""The same for a call of a group, whose other calls the peers may begin first: wait for nobody."""

RECORDING: tuple[Entry, ...] = (
    _ENGINE.record_data,
    _ENGINE.record_blocks,
    _ENGINE.record_equal,
    _ENGINE.record_feedback,
    _ENGINE.record_transfer,
)
"""Start nothing, and return what a graph issues."""


class EngineCalls(Generic[Result]):
    """Hands calls of one communicator to its engine, all of them blocking or none."""

    def __init__(self, state: CommunicatorState, blocking: bool) -> None:
        self._state = state
        self._blocking = blocking
        sites = state.recorder.sites
        entries = sites.recorded(BLOCKING if blocking else BACKGROUND)
        queued = sites.recorded(QUEUED)
        self.data, self.blocks, self.equal, self.feedback, self.transfer = entries
        self._queued = dict(zip(entries, queued, strict=True))
        self._records = dict(zip((*entries, *queued), 2 * RECORDING, strict=True))

    def enter(self, entry: Entry, arguments: tuple[Any, ...]) -> Result:
        """Make a call: return None from a blocking entry of the engine, else a Work.

        The arguments are the engine, a Prepared or a Transfer, the deadline, and more.
        """
        if CALLS and self._state.in_groups and get_ident() in CALLS:
            return self._collect(entry, arguments)
        try:
            started = self._call(entry, arguments) if CAPTURES else entry(*arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raised = self._error(error, arguments)
            del arguments  # the traceback of what is raised must not keep the engine
            raise raised from None
        if started is None:
            return None  # type: ignore[return-value]
        return Work(  # type: ignore[return-value]
            started, self._state.errors, arguments[2], arguments[1]
        )

    def _collect(self, entry: Entry, arguments: tuple[Any, ...]) -> Result:
        _, call, limit_s, *_, buffers = arguments
        work = Work(NotBegun(), self._state.errors, limit_s, call)
        begin = partial(self._begin, self._queued[entry], arguments)
        access = access_of(call, self._state, self._state.rank, buffers)
        CALLS[get_ident()].append(Deferred(begin, work, self._blocking, access))
        return None if self._blocking else work  # type: ignore[return-value]

    def _call(self, entry: Entry, arguments: tuple[Any, ...]) -> Any:
        if get_ident() in CAPTURES:
            return run_recorded(self._state, entry, self._records[entry], arguments)
        return entry(*arguments)

    def _begin(self, start: Entry, arguments: tuple[Any, ...]) -> Native:
        try:
            started: Native = self._call(start, arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raise self._error(error, arguments) from None
        return started

    def _error(self, error: Exception, arguments: tuple[Any, ...]) -> Exception:
        _, call, limit_s, *_ = arguments
        if isinstance(error, _core.CommunicatorFailed):
            return self._state.errors.of_call(error, limit_s, call)
        self._state.require_engine()
        return error
