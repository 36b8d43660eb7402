"""The control thread of this process and its event loop: one for all communicators.

The loop waits for descriptors and calls the registered services, which must not block. It logs a
service's exceptions and continues.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hccl_py.transport.threads import start_without_signals

if TYPE_CHECKING:
    import logging

_LONGEST_WAIT_S = 1.0
_MAX_LOGGED = 32


class Service(Protocol):
    """A client of the loop, called on the loop's thread only."""

    def next_s(self) -> float:
        """Return when to call `turn` at the latest, by `time.monotonic`."""

    def turn(self) -> None:
        """Do the work that is due; called after every wait."""


class ControlLoop:
    """The event loop, on a thread of its own (`start`) or the caller's (`run`).

    Attributes:
        longest_turn_s: longest interval between two calls of the services.
    """

    longest_turn_s = 1.0

    def __init__(self, at_end: Callable[[], None]) -> None:
        self.selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wake_fd, lambda: os.eventfd_read(self._wake_fd))
        self._commands: deque[Callable[[], None]] = deque()
        self._services: list[Service] = []
        self._stopping = False
        self._is_closed = False
        self._closing = threading.RLock()  # a finalizer may run inside it
        self._at_end = at_end
        self._num_logged = 0
        self._thread = threading.Thread(target=self._run, name="hccl-control", daemon=True)

    # Called by any thread.

    def start(self) -> None:
        """Start the thread."""
        start_without_signals(self._thread)

    def run(self) -> None:
        """Serve in the calling thread until `stop`."""
        self._thread = threading.current_thread()
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._at_end()
            self._close_descriptors()

    def call(self, command: Callable[[], None]) -> None:
        """Run a command on the thread, wait for it, and raise its exception."""
        if threading.current_thread() is self._thread:  # e.g. because a finalizer ran on it
            command()
            return
        from concurrent.futures import Future, wait

        done: Future[None] = Future()

        def run() -> None:
            try:
                command()
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self.post(run)
        while self._thread.is_alive() and not done.done():
            wait([done], _LONGEST_WAIT_S)
        if done.done():
            done.result()

    def post(self, command: Callable[[], None]) -> None:
        """Run a command on the thread soon; ignored once the loop has ended."""
        self._commands.append(command)
        self._wake()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_in_child(self) -> None:
        """In a forked child, which lacks the thread: close the copies of the descriptors."""
        self._closing = threading.RLock()
        self._close_descriptors()

    # Called by the control thread.

    def add(self, service: Service) -> None:
        """Register a service, unless it is registered."""
        if service not in self._services:
            self._services.append(service)

    def remove(self, service: Service) -> None:
        """Remove a service."""
        with contextlib.suppress(ValueError):
            self._services.remove(service)

    def watch(self, readable: int | socket.socket, action: Callable[[], object]) -> None:
        """Call `action` when a descriptor is readable."""
        self.selector.register(readable, selectors.EVENT_READ, action)

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action and log its exceptions, so that other communicators continue."""
        try:
            action()
        except Exception as error:
            self.log("the control thread could not do its work for one communicator", error)

    def log(self, problem: str, error: Exception | None = None) -> None:
        """Log a problem, up to a limit."""
        self._num_logged += 1
        if self._num_logged <= _MAX_LOGGED:
            logger = _logger()
            (logger.warning if error is None else logger.error)("%s", problem, exc_info=error)

    def _run(self) -> None:
        try:
            self.run()
        except Exception:
            what = "the control thread ended; failures are found by the data path alone"
            _logger().exception(what)

    def _turn(self) -> None:
        now_s = time.monotonic()
        until_s = min((service.next_s() for service in self._services), default=now_s + 60)
        pause_s = min(max(0.0, until_s - now_s), self.longest_turn_s)
        watched = self.selector.get_map()
        # A process that was stopped wakes without the events that arrived meanwhile. They must be
        # read before anything counts as late.
        for ready, _ in self.selector.select(pause_s) or self.selector.select(0):
            if watched.get(ready.fd) is ready:  # not closed by an earlier action of this turn
                self.guard(ready.data)
        # After draining the wake-up: a command posted from now on wakes the next turn.
        while self._commands:
            self.guard(self._commands.popleft())
        for service in tuple(self._services):
            self.guard(service.turn)

    def _wake(self) -> None:
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def _close_descriptors(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self.selector.close()
                os.close(self._wake_fd)


def _logger() -> "logging.Logger":
    # Imported here: agents of hccl-launch log nothing, and a thousand may start on one machine.
    import logging

    return logging.getLogger("hccl_py.transport")
