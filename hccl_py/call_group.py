"""`with hccl_py.group():` the calls of the block begin together at its end, as NCCL's groups do.

    with hccl_py.group():
        for peer in peers:
            comm.send(outgoing[peer], peer)    # noted; nothing is sent yet
            comm.recv(incoming[peer], peer)
    # all of them are done

What is collected is the calling thread's; other threads' calls run as ever. While a group is open
anywhere, a `_Collector` stands between the communicators and their engines, so that a call outside
of groups costs what it costs without them. What torch's process groups call is never collected.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hccl_py.fingerprint import Transfer
from hccl_py.submit import Runner, Shared, require_seconds
from hccl_py.transport import _core
from hccl_py.transport.errors import HcclError, InvalidArgumentError
from hccl_py.work import Work


class Later:
    """The engine's handle of a call that begins when its group ends."""

    def __init__(self) -> None:
        """Wait for the group's end."""
        self._native: _core.Work | None = None
        self._dropped = ""

    def begin(self, native: _core.Work) -> None:
        """Hand on to the call, which has begun."""
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
        """Return the rank that a finished recv heard from, else -1."""
        return -1 if self._native is None else self._native.source()


@dataclass(frozen=True)
class _Call:
    """A collected call: how it is started, and the handle that its caller has, if it has one."""

    shared: Shared
    start: Callable[..., _core.Work]
    arguments: tuple[Any, ...]
    later: Later | None

    def begin(self) -> Work:
        """Start the call."""
        kind, limit_s = self._told()
        try:
            native = self.start(*self.arguments)
        except _core.CommunicatorFailed as failure:
            raise self.shared.narrator.tell(failure, limit_s, kind) from None
        if self.later is not None:
            self.later.begin(native)
        return Work(native, self.shared.narrator, limit_s, kind)

    def _told(self) -> tuple[int | Transfer, float]:
        """Return what messages need: see `running.py` for what the entries take."""
        first = self.arguments[0]
        if isinstance(first, _core.Prepared):
            return first.fingerprint, self.arguments[1]
        sends, _, num_bytes, peer, tag, limit_s, _ = self.arguments
        return Transfer(sends, None if peer < 0 else peer, tag, num_bytes), limit_s


@dataclass
class _Batch:
    """What a thread has collected."""

    depth: int = 0
    calls: list[_Call] = field(default_factory=list)


class _OfThread(threading.local):
    batch: _Batch | None = None


class _Collector:
    """Stands where a communicator's engine is: keeps the calls of threads that have a group."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._core = shared.core

    def __getattr__(self, name: str) -> Any:
        entry = getattr(self._core, name)
        way, _, what = name.partition("_")
        if way not in ("run", "start"):
            return entry
        start = entry if way == "start" else getattr(self._core, f"start_{what}")
        if self._shared.sites is not None and what != "transfer":
            start = self._shared.sites.watch(start)

        def collect(*arguments: Any) -> Any:
            batch = _of_thread.batch
            if batch is None:
                return entry(*arguments)
            # What the engine would refuse only at the end, when other calls have begun.
            require_seconds(arguments[5 if what == "transfer" else 1])
            later = Later() if way == "start" else None
            batch.calls.append(_Call(self._shared, start, arguments, later))
            return later

        return collect


Faces = tuple[Runner[Any], Runner[Any]]

_of_thread = _OfThread()
_lock = threading.Lock()
_num_open = 0
_enrolled: "weakref.WeakKeyDictionary[Runner[Any], tuple[weakref.ref[Runner[Any]], Shared]]" = (
    weakref.WeakKeyDictionary()
)


def enrol(blocking: Runner[Any], nonblocking: Runner[Any], shared: Shared) -> None:
    """Have groups collect what is called on a communicator."""
    with _lock:
        _enrolled[blocking] = weakref.ref(nonblocking), shared
        if _num_open:
            _intercept()


def leave_alone(blocking: Runner[Any]) -> None:
    """Have groups collect nothing of a communicator: its owner counts on calls that are done."""
    with _lock:
        nonblocking, shared = _enrolled.pop(blocking, (None, None))
        if _num_open and nonblocking is not None and shared is not None:
            _use(blocking, nonblocking(), shared.core)


def require_no_group(what: str) -> None:
    """Refuse what needs its calls done at once.

    Raises:
        InvalidArgumentError: this thread has a group open.
    """
    if _of_thread.batch is not None:
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
    batch = _enter()
    num_before = len(batch.calls)
    try:
        yield
    except BaseException as error:
        _drop(batch, num_before, error)
        raise
    finally:
        batch.depth -= 1
        if batch.depth == 0:
            _leave()
    if batch.depth == 0:
        _run(batch.calls)


def _enter() -> _Batch:
    global _num_open
    batch = _of_thread.batch
    if batch is None:
        batch = _of_thread.batch = _Batch()
        with _lock:
            _num_open += 1
            _intercept()
    batch.depth += 1
    return batch


def _leave() -> None:
    global _num_open
    _of_thread.batch = None
    with _lock:
        _num_open -= 1
        if _num_open == 0:
            for blocking, (nonblocking, shared) in _enrolled.items():
                _use(blocking, nonblocking(), shared.core)


def _intercept() -> None:
    for blocking, (nonblocking, shared) in _enrolled.items():
        _use(blocking, nonblocking(), _Collector(shared))


def _use(blocking: Runner[Any], nonblocking: Runner[Any] | None, core: Any) -> None:
    blocking.use(core)
    if nonblocking is not None:
        nonblocking.use(core)


def _drop(batch: _Batch, num_before: int, error: BaseException) -> None:
    dropped = batch.calls[num_before:]
    del batch.calls[num_before:]
    reason = f"its hccl_py.group() was left by {type(error).__name__}: {error}"
    for call in dropped:
        if call.later is not None:
            call.later.drop(reason)
    if dropped and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(
            f"hccl_py.group(): none of the {len(dropped)} calls of the block was started"
        )


def _run(calls: list[_Call]) -> None:
    """Start all calls, then wait for the blocking ones; raise the first failure at the end."""
    first: HcclError | None = None
    started: list[Work] = []
    for call in calls:
        try:
            work = call.begin()
        except HcclError as error:
            first = first or error
            if call.later is not None:
                call.later.drop(f"{type(error).__name__}: {error}")
            continue
        if call.later is None:
            started.append(work)
    for work in started:
        try:
            work.wait()
        except HcclError as error:
            first = first or error
    if first is not None:
        raise first
