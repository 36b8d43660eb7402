"""Threads that wait for works whose future somebody asked for, and run the callbacks.

A callback may start collectives and block on their futures (PowerSGD does), and a future may be
waited for while an earlier one of another group cannot complete yet. So: works of one group, which
end in order, share a `Lane`; other works have a lane of their own; and the thread of a lane hands
the lane over before it runs a callback. Threads start when needed and are reused.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

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
os.register_at_fork(after_in_child=THREADS.forget)


class Lane:
    """Works that end in order: one thread at a time waits for them."""

    def __init__(self) -> None:
        """Make an empty lane, which has no thread."""
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Task, Task]] = deque()
        self._served = False

    def submit(self, wait: Task, finish: Task) -> None:
        """Call `wait`, then `finish`, on another thread, after the earlier jobs' `wait`.

        `wait` must not raise: its failure is for `finish` to find and report.
        """
        with self._lock:
            self._jobs.append((wait, finish))
            if self._served:
                return
            self._served = True
        THREADS.run(self._serve)

    def _serve(self) -> None:
        with self._lock:
            wait, finish = self._jobs.popleft()
        wait()
        with self._lock:
            self._served = handed_over = bool(self._jobs)
        if handed_over:
            THREADS.run(self._serve)
        finish()
