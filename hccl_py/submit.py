"""The one way of a checked call into the engine, to its end or in the background.

Fast path: no group is open in this process, the engine takes the call. Everything else (a group, a
failure, a closed communicator, a deadline that is no number) takes `_collect` or `_error`.
"""

import numbers
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

from hccl_py.call_group import BATCHES, Batch, DeferredCall
from hccl_py.communicator_state import CommunicatorState
from hccl_py.fingerprint import Transfer
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.work import Work, identify

Result = TypeVar("Result", covariant=True)

DATA, BLOCKS, EQUAL, TRANSFER = range(4)
"""Which of the engine's entries a call takes; what these expect stands in `bindings/calls.cc`."""

Entry = Callable[..., Any]
_ENGINE = _core.Communicator
BLOCKING: tuple[Entry, ...] = (
    _ENGINE.run_data,
    _ENGINE.run_blocks,
    _ENGINE.run_equal,
    _ENGINE.run_transfer,
)
"""Run a call on the calling thread and return None."""
BACKGROUND: tuple[Entry, ...] = (
    _ENGINE.start_data,
    _ENGINE.start_blocks,
    _ENGINE.start_equal,
    _ENGINE.start_transfer,
)
"""Start a call and return the engine's Work."""


def require_seconds(limit_s: object) -> None:
    """Raise InvalidArgumentError unless `limit_s` is a number."""
    if not isinstance(limit_s, numbers.Real):
        raise InvalidArgumentError(f"timeout_s: expected a number of seconds, got {limit_s!r}")


class Submitter(Generic[Result]):
    """Hands calls of one communicator to its engine, all of them blocking or none."""

    __slots__ = ("_entries", "_starts", "_state")

    def __init__(
        self, state: CommunicatorState, entries: tuple[Entry, ...], starts: tuple[Entry, ...]
    ) -> None:
        """Use `entries`; calls of a group begin through `starts`, which never block."""
        self._state = state
        self._entries = entries
        self._starts = starts

    def submit(
        self,
        entry: int,
        call: _core.Prepared | Transfer,
        limit_s: float,
        arguments: tuple[Any, ...],
    ) -> Result:
        """Make a call.

        Args:
            entry: DATA, BLOCKS, EQUAL or TRANSFER.
            call: for messages.
            limit_s: deadline of the call.
            arguments: of the entry: the engine, then what the call is.

        Returns:
            None from a blocking entry, else a Work.
        """
        if BATCHES and self._state.in_groups:
            batch = BATCHES.get(get_ident())
            if batch is not None:
                return self._collect(batch, entry, call, limit_s, arguments)
        try:
            started = self._entries[entry](*arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raised = self._error(error, call, limit_s)
            del arguments  # the traceback of what is raised must not keep the engine
            raise raised from None
        if started is None:
            return None  # type: ignore[return-value]
        return Work(started, self._state.errors, limit_s, call)  # type: ignore[return-value]

    def _collect(
        self,
        batch: Batch,
        entry: int,
        call: _core.Prepared | Transfer,
        limit_s: float,
        arguments: tuple[Any, ...],
    ) -> Result:
        """Keep a call for the end of its group."""
        require_seconds(limit_s)  # the engine would reject it only after other calls have begun
        begin = partial(self._begin, entry, call, limit_s, arguments)
        if self._entries is not self._starts:
            batch.add(begin, None)
            return None  # type: ignore[return-value]
        deferred = DeferredCall()
        batch.add(begin, deferred)
        return Work(deferred, self._state.errors, limit_s, call)  # type: ignore[return-value]

    def _begin(
        self,
        entry: int,
        call: _core.Prepared | Transfer,
        limit_s: float,
        arguments: tuple[Any, ...],
    ) -> Work:
        """Start a call whose group has ended."""
        try:
            started = self._starts[entry](*arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raise self._error(error, call, limit_s) from None
        return Work(started, self._state.errors, limit_s, call)

    def _error(
        self, error: Exception, call: _core.Prepared | Transfer, limit_s: float
    ) -> Exception:
        """Return what to raise for a call that the engine failed or did not take."""
        if isinstance(error, _core.CommunicatorFailed):
            return self._state.errors.of_call(error, limit_s, identify(call))
        self._state.require_engine()
        require_seconds(limit_s)
        return error
