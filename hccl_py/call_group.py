"""`with hccl_py.group():` the calls of the block begin together at its end, as NCCL's groups do.

    with hccl_py.group():
        for peer in peers:
            comm.send(outgoing[peer], peer)    # noted; nothing is sent yet
            comm.recv(incoming[peer], peer)
    # all of them are done

A group collects the calls of its own thread only. What torch's process groups call is never
collected.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import get_ident
from typing import NamedTuple

from hccl_py.transport.errors import HcclError, InvalidArgumentError
from hccl_py.work import NativeWork, Work


class DeferredCall:
    """Takes the place of the engine's Work until the group of its call ends."""

    def __init__(self) -> None:
        """Wait for the end of the group."""
        self._native: NativeWork | None = None
        self._dropped = ""

    def begin(self, native: NativeWork) -> None:
        """Pass everything on to the call, which has begun."""
        self._native = native

    def drop(self, reason: str) -> None:
        """Never begin."""
        self._dropped = reason

    def wait(self, timeout_s: float) -> bool:
        """Block until the call is done.

        Raises:
            InvalidArgumentError: the group has not ended, or the call was dropped.
        """
        if self._native is None:
            raise InvalidArgumentError(
                f"the call was never started: {self._dropped}"
                if self._dropped
                else "the call has not been started: its hccl_py.group() is still open; wait after "
                "the block"
            )
        return self._native.wait(timeout_s)

    def done(self) -> bool:
        """Whether the call has ended, or was dropped."""
        return bool(self._dropped) if self._native is None else self._native.done()

    def failed(self) -> bool:
        """Whether the call failed, or was dropped."""
        return bool(self._dropped) if self._native is None else self._native.failed()

    def source(self) -> int:
        """Return the rank that a finished recv took its data from, else -1."""
        return -1 if self._native is None else self._native.source()


class _Collected(NamedTuple):
    """How a call begins, and the handle that its caller has; None: the caller waits for it."""

    begin: Callable[[], Work]
    deferred: DeferredCall | None


@dataclass
class Batch:
    """What one thread has collected."""

    depth: int = 0
    calls: list[_Collected] = field(default_factory=list)

    def add(self, begin: Callable[[], Work], deferred: DeferredCall | None) -> None:
        """Keep a call for the end of the outermost group."""
        self.calls.append(_Collected(begin, deferred))


BATCHES: dict[int, Batch] = {}
"""By thread, while that thread has a group open. Each thread changes its own entry only."""


def require_no_group(what: str) -> None:
    """Check that a call which needs its result at once is not made inside a group.

    Raises:
        InvalidArgumentError: this thread has a group open.
    """
    if get_ident() in BATCHES:
        raise InvalidArgumentError(
            f"{what}: expected no open hccl_py.group(), because it communicates at once; call it "
            "before or after the block"
        )


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Collect what this thread calls on any communicator; at the end of the block, run it all.

    All calls begin in the order of the block, so sends and recvs with any peers in any order cannot
    deadlock. The block ends when its blocking calls are done; the nonblocking ones have begun. Only
    the outermost of nested groups starts anything. Buffers belong to the calls from when they are
    made, deadlines count from the end of the block.

    An exception out of the block starts nothing of it. A call that fails at the end raises there,
    once all others have ended too; of several failures the first.

    Raises:
        CommunicatorError: a call failed.
    """
    batch = BATCHES.setdefault(get_ident(), Batch())
    batch.depth += 1
    num_before = len(batch.calls)
    try:
        yield
    except BaseException as error:
        _drop(batch, num_before, error)
        raise
    finally:
        batch.depth -= 1
        if batch.depth == 0:
            del BATCHES[get_ident()]
    if batch.depth == 0:
        _run(batch.calls)


def _drop(batch: Batch, num_before: int, error: BaseException) -> None:
    dropped = batch.calls[num_before:]
    del batch.calls[num_before:]
    reason = f"its hccl_py.group() was left by {type(error).__name__}: {error}"
    for call in dropped:
        if call.deferred is not None:
            call.deferred.drop(reason)
    if dropped and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(
            f"hccl_py.group(): none of the {len(dropped)} calls of the block was started"
        )


def _run(calls: list[_Collected]) -> None:
    """Start all calls, then wait for the blocking ones; raise the first failure at the end."""
    first: HcclError | None = None
    started: list[Work] = []
    for call in calls:
        try:
            work = call.begin()
        except HcclError as error:
            first = first or error
            if call.deferred is not None:
                call.deferred.drop(f"{type(error).__name__}: {error}")
            continue
        if call.deferred is None:
            started.append(work)
        else:
            call.deferred.begin(work.native)
    for work in started:
        try:
            work.wait()
        except HcclError as error:
            first = first or error
    if first is not None:
        raise first
