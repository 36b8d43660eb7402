"""`with hccl_py.group():` starts the calls of the block together at its end, like NCCL's groups.

A group collects the calls of its own thread only, and no calls of torch's process groups.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import NamedTuple

from hccl_py.calls.work import Native, NotBegun, Work
from hccl_py.memory.at_once import Access, require_apart_at_once
from hccl_py.memory.element_types import Span
from hccl_py.transport.errors import HcclError, InvalidArgumentError


class Deferred(NamedTuple):
    """A collected call; `blocks`: its caller waits for it, and has no handle."""

    begin: Callable[[], Native]
    work: Work
    blocks: bool
    access: Access


CALLS: dict[int, list[Deferred]] = {}
"""Open groups by thread. Each thread changes its own entry only."""


def require_copyable(what: str, read: Sequence[Span]) -> None:
    """Raise InvalidArgumentError if a copy made now reads memory that collected calls write."""
    calls = CALLS.get(get_ident())
    if calls:
        _require_apart([*(one.access for one in calls), Access(what, None, (), read)])


def _require_apart(calls: Sequence[Access]) -> None:
    require_apart_at_once(calls, "hccl_py.group()", "make one of them after the block")


def require_no_group(what: str) -> None:
    """Raise InvalidArgumentError if this thread has a group open: `what` needs its result now."""
    if get_ident() in CALLS:
        raise InvalidArgumentError(
            f"{what}: expected no open hccl_py.group(), because it communicates at once; call it "
            "before or after the block"
        )


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Collect this thread's calls on all communicators, and run them at the end of the block.

    All calls begin in the order of the block, so sends and recvs with any peers in any order cannot
    deadlock. Collectives of one communicator run one after the other. All other calls run at the
    same time, so they must not share memory that one of them writes. The block ends when its
    blocking calls are done and the nonblocking ones have begun. Of nested groups only the outermost
    starts calls. A call owns its buffers from the time it is made; deadlines count from the end of
    the block.

    An exception in the block starts none of its calls. The first failure of a call is raised at the
    end, once all calls have ended.

    Raises:
        InvalidArgumentError: calls that run at once share memory; none was started.
        CommunicatorError: a call failed.
    """
    thread = get_ident()
    is_outermost = thread not in CALLS
    calls = CALLS.setdefault(thread, [])
    num_before = len(calls)
    try:
        yield
        if is_outermost:
            _require_apart([one.access for one in calls])
    except BaseException as error:
        _drop(calls, num_before, error)
        raise
    finally:
        if is_outermost:
            del CALLS[thread]
    if is_outermost:
        _run(calls)


def _drop(calls: list[Deferred], num_before: int, error: BaseException) -> None:
    dropped = calls[num_before:]
    del calls[num_before:]
    reason = f"its hccl_py.group() was left by {type(error).__name__}: {error}"
    for call in dropped:
        call.work.native = NotBegun(reason)
    if dropped and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(
            f"hccl_py.group(): none of the {len(dropped)} calls of the block was started"
        )


def _run(calls: list[Deferred]) -> None:
    """Start all calls, then wait for the blocking ones; raise the first failure at the end."""
    first: HcclError | None = None
    started: list[Work] = []
    for call in calls:
        try:
            call.work.native = call.begin()
            if call.blocks:
                started.append(call.work)
        except HcclError as error:
            first = first or error
            call.work.native = NotBegun(f"{type(error).__name__}: {error}")
    for work in started:
        try:
            work.wait()
        except HcclError as error:
            first = first or error
    if first is not None:
        raise first
