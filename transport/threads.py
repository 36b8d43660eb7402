"""Threads and signals: the one place that starts Python threads in a user's process, and a check.

Threads of the engine are started likewise, in C++.
"""

import signal
from threading import Thread
from types import TracebackType


def start_without_signals(thread: Thread) -> None:
    """Start a thread that the kernel gives no signal to.

    Python runs handlers on the main thread alone. A signal that lands on another thread ends that
    thread's system call with EINTR, and leaves the main thread asleep in its own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()  # it inherits the mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised it, which nobody may turn into another error."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(one, "__code__", None) for one in handlers} - {None}
    place: TracebackType | None = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False
