"""SIGUSR2: the flight recorder of a program that hangs.

The signal writes to an eventfd (`base/signal_bell.h`), and a thread of its own writes the files; so
it works even while the main thread is in C++. An existing handler of the signal is kept, and a
later one replaces ours.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import start_without_signals

logger = logging.getLogger("hccl_py")

_STOP = 1 << 32  # larger than any sum of signals
_LONGEST_DUMP_S = 5.0  # longest wait for a dump at exit


class Bell:
    """Calls a function on SIGUSR2, while there are users."""

    def __init__(self) -> None:
        self.leaves_signals_alone = False  # in a program that is not Python's
        self._lock = threading.RLock()  # the garbage collector may release inside acquire()
        self._num_users = 0
        self._fd: int | None = None
        self._thread: threading.Thread | None = None  # the last one

    def acquire(self, action: Callable[[], None]) -> None:
        """Add a user; the first one starts the listener."""
        with self._lock:
            self._num_users += 1
            if self._num_users > 1 or self.leaves_signals_alone:
                return
            try:
                fd = os.eventfd(0, os.EFD_CLOEXEC)
            except OSError as error:  # optional for the communicator
                logger.debug("the flight recorder does not listen to SIGUSR2: %s", error)
                return
            if not _core.ring_on_signal(signal.SIGUSR2, fd):
                os.close(fd)
                logger.debug("SIGUSR2 has a handler; the flight recorder does not listen to it")
                return
            listener = partial(_listen, fd, action)
            thread = threading.Thread(target=listener, name="hccl-flight-recorder", daemon=True)
            try:
                start_without_signals(thread)
            except BootstrapError as error:
                _core.silence_signal_bell()
                os.close(fd)
                logger.warning("the flight recorder does not listen to SIGUSR2: %s", error)
                return
            self._fd, self._thread = fd, thread

    def release(self) -> None:
        """Remove a user; the last one stops the listener, and the signal then has no effect."""
        with self._lock:
            if self._num_users == 0:
                return  # in a forked child: the parent's
            self._num_users -= 1
            if self._num_users or self._fd is None:
                return
            _core.silence_signal_bell()
            os.eventfd_write(self._fd, _STOP)  # the thread closes it
            self._fd = None

    def await_end(self) -> None:
        """At exit: wait for the thread that the last release stops."""
        if self._thread is not None and self._fd is None:
            self._thread.join(_LONGEST_DUMP_S)

    def forget(self) -> None:
        """In a forked child: drop the listener, whose thread and signal belong to the parent."""
        _core.forget_signal_bell()
        if self._fd is not None:
            os.close(self._fd)
        self._lock = threading.RLock()
        self._num_users = 0
        self._fd = self._thread = None


def _listen(fd: int, action: Callable[[], None]) -> None:
    while os.eventfd_read(fd) < _STOP:
        try:
            action()
        except Exception:
            logger.warning("flight recorder: could not be written", exc_info=True)
    os.close(fd)


BELL = Bell()
"""One per process, like the signal."""

register(LifecycleStage.DUMP_SIGNAL, at_exit=BELL.await_end, in_forked_child=BELL.forget)
