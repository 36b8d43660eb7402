"""Threads and signals: the one place that starts Python threads in a user's process, and a check.

Threads of the engine are started likewise, in C++.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from types import TracebackType
from typing import TypeVar
from weakref import WeakKeyDictionary

from hccl_py.transport.errors import BootstrapError

T = TypeVar("T")
SIGNAL_SLICE_S = 0.2
"""How long the main thread may wait without a look at its signals."""
_masks: WeakKeyDictionary[Thread, Iterable[int]] = WeakKeyDictionary()
"""The signals that the starter of a thread had blocked."""


def start_without_signals(thread: Thread) -> None:
    """Start a thread that the kernel gives no signal to.

    Python runs handlers on the main thread alone. A signal that lands on another thread ends that
    thread's system call with EINTR, and leaves the main thread asleep in its own.

    BootstrapError: the process may have no further thread.
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
    """Run a user's code on a thread of the library: a process that it starts inherits the mask."""
    mask = _masks.get(threading.current_thread())
    if mask is None:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call_interruptibly(function: Callable[[], T]) -> T:
    """Call what waits in C++ for long; handlers of signals run meanwhile, and what they raise ends
    the wait. The call itself then goes on, on a thread of its own.
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
    except BootstrapError:  # it may have no thread: what is called may do without
        return function()
    while not done.done():
        wait([done], SIGNAL_SLICE_S)
    return done.result()


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised it, which nobody may turn into another error."""
    place: TracebackType | None = error.__traceback__
    while place is not None:
        frame = place.tb_frame
        # No other function is handed the number of a signal and the frame of its caller.
        for value in frame.f_locals.values():
            handed = value[-1] if type(value) is tuple and value else value
            if frame.f_back is not None and handed is frame.f_back:
                return True
        place = place.tb_next
    return False
