"""Threads and signals: the one place that starts Python threads in a user's process, and a check.

C++ starts the engine's threads in the same way.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from types import TracebackType
from typing import TypeVar
from weakref import WeakKeyDictionary

from hccl_py.transport.errors import BootstrapError

T = TypeVar("T")
SIGNAL_SLICE_S = 0.2
"""Longest wait of the main thread between two checks for signals."""
_masks: WeakKeyDictionary[Thread, Iterable[int]] = WeakKeyDictionary()
"""The signals that the starter of a thread had blocked."""


def start_without_signals(thread: Thread) -> None:
    """Start a thread that receives no signals.

    Python runs handlers on the main thread only. A signal that another thread receives interrupts
    that thread's system call with EINTR, and leaves the main thread asleep in its own.

    BootstrapError: the process may not start another thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _masks[thread] = before
    try:
        thread.start()  # it inherits the mask
    except RuntimeError as error:
        raise BootstrapError(
            f"{error}: raise the limits of threads (ulimit -u, or pids of the cgroup) and of "
            "address space (ulimit -v) there"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def in_users_code() -> Iterator[None]:
    """Unblock signals while a user's code runs: processes that it starts inherit the mask."""
    mask = _masks.get(threading.current_thread())
    if mask is None:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call_interruptibly(function: Callable[[], T], limit_s: float = math.inf) -> T:
    """Call a function that waits in C++; signal handlers run meanwhile, and their exceptions end
    the wait, as does TimeoutError after `limit_s`. The call then continues on a thread of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    from concurrent.futures import Future, wait

    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    try:
        start_without_signals(Thread(target=run, name="hccl-call", daemon=True))
    except BootstrapError:  # no further thread is allowed: call directly
        return function()
    until_s = time.monotonic() + limit_s
    while not done.done():
        if time.monotonic() >= until_s:
            raise TimeoutError(f"no answer in {limit_s:g} s")
        wait([done], SIGNAL_SLICE_S)
    return done.result()


def is_of_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised it; such an error must not be translated."""
    place: TracebackType | None = error.__traceback__
    while place is not None:
        frame = place.tb_frame
        # Only a signal handler is called with a signal's number and its caller's frame.
        for value in frame.f_locals.values():
            handed = value[-1] if type(value) is tuple and value else value
            if frame.f_back is not None and handed is frame.f_back:
                return True
        place = place.tb_next
    return False
