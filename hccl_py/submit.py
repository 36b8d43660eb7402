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

Entry = Callable[..., Any]
_ENGINE = _core.Communicator
BLOCKING: tuple[Entry, ...] = (
    _ENGINE.run_data,
    _ENGINE.run_blocks,
    _ENGINE.run_equal,
    _ENGINE.run_transfer,
)
"""Run a call on the calling thread and return None; `bindings/calls.cc` says what each takes."""
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

    __slots__ = ("_starts", "_state", "entries")

    def __init__(
        self, state: CommunicatorState, entries: tuple[Entry, ...], starts: tuple[Entry, ...]
    ) -> None:
        """Use `entries`; calls of a group begin through `starts`, which never block."""
        self._state = state
        self.entries = entries
        self._starts = dict(zip(entries, starts, strict=True))

    def submit(
        self, entry: Entry, arguments: tuple[Any, ...], transfer: Transfer | None = None
    ) -> Result:
        """Make a call.

        Args:
            entry: one of `entries`.
            arguments: of the entry: the engine, then of a collective the Prepared and the deadline.
            transfer: the call, if it is no collective.

        Returns:
            None from a blocking entry, else a Work.
        """
        if BATCHES and self._state.in_groups:
            batch = BATCHES.get(get_ident())
            if batch is not None:
                return self._collect(batch, entry, arguments, transfer)
        try:
            started = entry(*arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raised = self._error(error, arguments, transfer)
            del arguments  # the traceback of what is raised must not keep the engine
            raise raised from None
        if started is None:
            return None  # type: ignore[return-value]
        limit_s, call = (
            (arguments[2], arguments[1]) if transfer is None else (arguments[6], transfer)
        )
        return Work(started, self._state.errors, limit_s, call)  # type: ignore[return-value]

    def _collect(
        self,
        batch: Batch,
        entry: Entry,
        arguments: tuple[Any, ...],
        transfer: Transfer | None,
    ) -> Result:
        """Keep a call for the end of its group."""
        limit_s, call = _call_of(arguments, transfer)
        require_seconds(limit_s)  # the engine would reject it only after other calls have begun
        start = self._starts[entry]
        deferred = DeferredCall() if start is entry else None
        batch.add(partial(self._begin, start, arguments, transfer), deferred)
        if deferred is None:
            return None  # type: ignore[return-value]
        return Work(deferred, self._state.errors, limit_s, call)  # type: ignore[return-value]

    def _begin(self, start: Entry, arguments: tuple[Any, ...], transfer: Transfer | None) -> Work:
        """Start a call whose group has ended."""
        try:
            started = start(*arguments)
        except (_core.CommunicatorFailed, TypeError) as error:
            raise self._error(error, arguments, transfer) from None
        return Work(started, self._state.errors, *_call_of(arguments, transfer))

    def _error(
        self, error: Exception, arguments: tuple[Any, ...], transfer: Transfer | None
    ) -> Exception:
        """Return what to raise for a call that the engine failed or did not take."""
        limit_s, call = _call_of(arguments, transfer)
        if isinstance(error, _core.CommunicatorFailed):
            return self._state.errors.of_call(error, limit_s, identify(call))
        self._state.require_engine()
        require_seconds(limit_s)
        return error


def _call_of(
    arguments: tuple[Any, ...], transfer: Transfer | None
) -> tuple[float, _core.Prepared | Transfer]:
    """Return the deadline of a call, and what messages name it by."""
    return (arguments[2], arguments[1]) if transfer is None else (arguments[6], transfer)
