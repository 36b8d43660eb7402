"""The one place that starts Python threads of the library inside a user's process.

Threads of the engine are started likewise, in C++.
"""

import signal
from threading import Thread


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
