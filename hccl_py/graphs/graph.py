"""`Graph`: the calls of a block of `hccl_py.capture()`, issued again in one crossing into C++."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hccl_py.calls.call_group import CALLS, require_no_group
from hccl_py.calls.communicator_state import UNISSUED
from hccl_py.calls.recording import CAPTURES, RecordedCall, Recording, recording_here
from hccl_py.calls.work import Work, keep_until_done
from hccl_py.fingerprint import Call, describe
from hccl_py.memory.buffers import READER, span_of
from hccl_py.memory.element_types import Span
from hccl_py.memory.exporters import HeldAddress
from hccl_py.transport import _core
from hccl_py.transport.arguments import LONGEST_S, flag
from hccl_py.transport.errors import (
    AbortedError,
    CommunicatorError,
    HcclError,
    InvalidArgumentError,
)

_UNDER_WAY, _RUNS_ELSEWHERE, _CLOSED = -1, -2, -3
"""Results of the engine's Graph that submitted nothing; above 0: the call whose memory moved."""


class Graph:
    """Recorded calls on fixed buffers; `hccl_py.capture()` makes it.

    It keeps the buffers, and its communicators until they are closed.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_communicators",
        "_native",
        "_reason",
        "_unwatched",
        "entry",
    )

    def __init__(self) -> None:
        """Begin without calls."""
        self._calls: list[RecordedCall] = []
        self._native: Any = None
        self.entry: Any = None  # the native graph, if it can check all buffers
        self._reason = "its block has not ended"

    def __len__(self) -> int:
        """Count the calls."""
        return len(self._calls)

    def __repr__(self) -> str:
        """Show the calls."""
        calls = ", ".join(describe(one.call) for one in self._calls)
        return f"<hccl_py graph of {len(self)} calls: {calls}>"

    def __del__(self) -> None:
        """Keep the buffers of calls that still run after another communicator's call failed."""
        if self._native is not None:
            keep_until_done(_Replay(self._native))

    def drop(self, reason: str) -> None:
        """Record why the graph never gets calls."""
        self._reason = reason

    def fill(self, recording: Recording) -> None:
        """Take over a recording."""
        states = list(dict.fromkeys(one.state for one in recording.calls))
        numbers = {state: number for number, state in enumerate(states)}
        steps = [
            (one.awaited, numbers[one.state], one.first, one.last, one.blocks)
            for one in recording.steps
        ]
        calls = [one.native for one in recording.calls]
        overrides: list[dict[Any, Any]] = [CALLS, CAPTURES, UNISSUED]
        engines = [state.calls for state in states]
        native = _core.Graph(engines, calls, steps, overrides, READER)
        self._communicators = [state.owner() for state in states if state.owner is not None]
        self._unwatched = list(_watch(native, recording))
        self._calls, self._native = recording.calls, native
        self.entry = None if self._unwatched else native

    @_core.entering
    def replay(self, *, async_op: bool = False) -> Work | None:
        """Repeat the recorded calls in order; every rank that recorded them calls this.

        The calls begin when the previous replay has ended. They have the recorded timeouts, which
        count from each call's submission.

        Args:
            async_op: return a Work of all calls at once; otherwise return None when all have ended.

        Raises:
            InvalidArgumentError: nothing was sent, because a buffer has moved, the calls must wait
                for each other (`async_op`), or a capture() or group() is open.
            CommunicatorError: a call failed, or its communicator had failed or was closed before.
        """
        # A replay without these cases takes the fast path in bindings/calls/call_entry.cc.
        self._check()
        if not flag("async_op", async_op):
            self._issue(self._native.run)
            return None
        self._require_one_batch()
        self._issue(self._native.start)
        return Work(_Replay(self._native), _Errors(self), LONGEST_S, 0)  # type: ignore[arg-type]

    def _issue(self, issue: Callable[[], int]) -> None:
        try:
            outcome = issue()
            while outcome == _UNDER_WAY:
                self._native.wait(LONGEST_S)
                outcome = issue()
        except _core.CommunicatorFailed as failure:
            raise self.failed(failure) from None
        if outcome:
            raise self._rejected(outcome)

    def _check(self) -> None:
        """Check the buffers that C++ cannot check."""
        if self._native is None:
            raise InvalidArgumentError(f"replay: expected a graph with calls, but {self._reason}")
        require_no_group("replay")
        if recording_here() is not None:
            raise InvalidArgumentError("replay: expected no open hccl_py.capture() in this thread")
        for one in self._unwatched:
            if _span_or_none(one.buffer) != one.span:
                raise self._rejected(one.call)
        for communicator in self._communicators:
            if communicator in UNISSUED:
                UNISSUED[communicator]()

    def _require_one_batch(self) -> None:
        if not self._native.is_one_batch():
            raise InvalidArgumentError(
                "replay: expected calls that can be handed over at once (async_op), but a call of "
                "this graph waits for a send or recv or for another communicator; use replay() "
                "without async_op"
            )

    def _rejected(self, outcome: int) -> HcclError:
        if outcome == _RUNS_ELSEWHERE:
            return InvalidArgumentError(
                "replay: expected no other thread to replay this graph at the same time; record a "
                "graph for each thread"
            )
        if outcome == _CLOSED:
            return self._closed()
        return InvalidArgumentError(
            f"replay: expected the buffers of the block where they were, but one of "
            f"{self._place(outcome - 1)} was freed, resized or moved; nothing was sent; record a "
            "new graph"
        )

    def _closed(self) -> HcclError:
        for number, one in enumerate(self._calls):
            try:
                one.state.require_engine()
            except AbortedError as error:
                return AbortedError(
                    f"replay: {self._place(number)}: {error}; record a new graph on an open one"
                )
        return AbortedError("replay: a communicator was closed meanwhile")

    def _place(self, number: int) -> str:
        return f"call {number + 1} of {len(self)} ({describe(self._calls[number].call)})"

    def failed(self, failure: _core.CommunicatorFailed) -> CommunicatorError:
        """Return the error of the first call that failed."""
        number: int = self._native.first_failed()
        one = self._calls[number]
        error = one.state.errors.of_call(failure, one.limit_s, one.call)
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"in the replay of a graph, at {self._place(number)}")
        return error

    def unfinished(self, waited_s: float) -> CommunicatorError:
        """Return the error of a wait that was too short."""
        number: int = min(self._native.first_open(), len(self) - 1)
        one = self._calls[number]
        return one.state.errors.of_wait(waited_s, one.limit_s, one.call)


class _Replay:
    """One replay in the background; the graph may be replayed again when it has ended."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._number = native.num_started()

    def _is_over(self) -> bool:
        return bool(self._native.num_started() > self._number)

    def wait(self, timeout_s: float) -> bool:
        return self._is_over() or bool(self._native.wait(timeout_s))

    def done(self) -> bool:
        return self._is_over() or bool(self._native.done())

    def failed(self) -> bool:
        return not self._is_over() and self._native.first_failed() is not None

    def source(self) -> int:
        return -1


class _Errors:
    """Makes the errors of a Work from the call that failed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def of_call(self, failure: _core.CommunicatorFailed, *_: object) -> CommunicatorError:
        return self._graph.failed(failure)

    def of_wait(self, waited_s: float, timeout_s: float, call: Call) -> CommunicatorError:
        return self._graph.unfinished(waited_s)


class _Unwatched(NamedTuple):
    """A buffer that C++ cannot check; `call` counts from 1."""

    call: int
    buffer: Any
    span: Span


def _watch(native: Any, recording: Recording) -> Iterator[_Unwatched]:
    """Have C++ check the calls' buffers before each replay; yield the ones that it cannot."""
    seen: set[int] = set()
    for number, one in enumerate(recording.calls):
        for buffer in _flattened(one.buffers):
            if id(buffer) in seen:
                continue
            seen.add(id(buffer))
            if native.watch(buffer, number + 1):
                continue
            span = span_of(buffer)
            # Exported memory cannot move.
            if not isinstance(span.address, HeldAddress):
                yield _Unwatched(number + 1, buffer, span)


def _flattened(buffers: object) -> Iterator[Any]:
    if isinstance(buffers, (list, tuple)) and not isinstance(buffers, Span):
        for one in buffers:
            yield from _flattened(one)
    elif buffers is not None:
        yield buffers


def _span_or_none(buffer: Any) -> Span | None:
    try:
        return span_of(buffer)
    except InvalidArgumentError:
        return None
