"""Threads that wait for works with a future, and run the callbacks.

Works of one group end in order, so they share a `Lane`: one thread waits for each in turn and runs
its callbacks. The order matters: callbacks may start collectives (PowerSGD's do), and all ranks
must start collectives in one order. A callback may also block on the future of a collective that it
started; that future is in a lane of the callback. Threads start when needed and are reused.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from hccl_py.transport.process_lifecycle import Stage, register

Task = Callable[[], None]


class Threads:
    """Daemon threads; one more starts only when all of them are busy."""

    def __init__(self) -> None:
        """Start none yet."""
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._idle = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def run(self, task: Task) -> None:
        """Run `task` on a thread that does nothing else meanwhile."""
        with self._changed:
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
                return
            thread = threading.Thread(target=self._serve, name="hccl-futures", daemon=True)
            self._threads.append(thread)
        thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the threads; a thread that is still inside a task after `timeout_s` is left."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def forget(self) -> None:
        """Start anew in a forked child, where the parent's threads and locks mean nothing."""
        self._reset()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._tasks or self._stopped)
                self._idle -= 1
                if not self._tasks:
                    return
                task = self._tasks.popleft()
            # Torch keeps what a callback raises in the future that `then` returned.
            with contextlib.suppress(Exception):
                task()
            del task


THREADS = Threads()
register(Stage.FUTURE_THREADS, in_forked_child=THREADS.forget)
_in_callback = threading.local()
"""`lane`: of the futures that the callback on this thread asks for."""


class Lane:
    """Works that end in order, and whose callbacks run in that order, one at a time."""

    def __init__(self) -> None:
        """Make an empty lane, which has no thread."""
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Task, Task]] = deque()
        self._served = False

    def submit(self, wait: Task, finish: Task) -> None:
        """Call `wait`, then `finish`, on another thread, after those of the earlier jobs.

        `wait` must not raise: its failure is for `finish` to find and report.
        """
        lane: Lane = getattr(_in_callback, "lane", self)
        lane.append(wait, finish)

    def append(self, wait: Task, finish: Task) -> None:
        """Do as `submit`, on this lane even in a callback; for jobs that wait for no callback."""
        with self._lock:
            self._jobs.append((wait, finish))
            if self._served:
                return
            self._served = True
        THREADS.run(self._serve)

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._served = False
                    return
                wait, finish = self._jobs.popleft()
            wait()
            _in_callback.lane = Lane()
            try:
                finish()
            finally:
                del _in_callback.lane
                del wait, finish  # they hold tensors
