"""Threads that wait for works with a future, and run the callbacks.

Works of one group end in order, so they share a `Lane`: one thread waits for each in turn and runs
its callbacks. Torch runs a callback that is added after the end on the thread that adds it.

Callbacks may start collectives (PowerSGD's do), which all ranks must start in one order. The order
is the same among the callbacks of a lane, but not between them and the group's own calls. So such
collectives have communicators of their own, one for each group and lane (`submit.py`). A callback
may also block on the future of a collective that it started, so that future is in the lane
`for_callbacks`. Threads start when needed and are reused.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import Variable

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import start_without_signals

EXIT_TIMEOUT_S = 5.0

Task = Callable[[], object]


class Threads:
    """Daemon threads; one more starts only when all of them are busy."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew in a forked child, without the parent's threads and locks."""
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._idle = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def run(self, task: Task) -> None:
        """Run `task` on an idle thread."""
        with self._changed:
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
                return
            thread = threading.Thread(target=self._serve, name="hccl-futures", daemon=True)
            self._threads.append(thread)
        start_without_signals(thread)

    def stop(self) -> None:
        """End the threads; abandon a thread that is still in a task after `EXIT_TIMEOUT_S`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._tasks or self._stopped)
                self._idle -= 1
                if not self._tasks:
                    return
                task = self._tasks.popleft()
            task()
            del task


THREADS = Threads()
register(LifecycleStage.FUTURE_THREADS, at_exit=THREADS.stop, in_forked_child=THREADS.reset)


class _Thread(threading.local):
    """The lane for futures that a callback on this thread requests; None: there is no callback."""

    lane: Lane | None = None


_this_thread = _Thread()


def lane_here() -> Lane | None:
    """Return the lane for the calls of the callback that runs on this thread, if it has a name."""
    lane = _this_thread.lane
    return lane if lane is not None and lane.name else None


class Unended:
    """Counts the jobs of one group that have not ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num = 0
        self._backward = -1

    def await_at_end_of_backward(self) -> None:
        """Have the backward pass of this thread, if there is one, wait for the jobs at its end.

        DDP's reducer then waits in C++, where no signal handler runs; an exception of a handler
        passes unchanged through a callback of autograd.
        """
        backward = torch._C._current_graph_task_id()
        if backward not in (-1, self._backward):
            self._backward = backward
            Variable._execution_engine.queue_callback(self.wait)

    def add(self, num: int) -> None:
        """Count jobs that begin (1) or end (-1)."""
        with self._changed:
            self._num += num
            if not self._num:
                self._changed.notify_all()

    def wait(self) -> None:
        """Block until all jobs have ended; inside a job, return at once."""
        if _this_thread.lane is None:
            with self._changed:
                self._changed.wait_for(lambda: not self._num)


class Lane:
    """Jobs that run in order, one at a time: each waits for a work and runs its callbacks.

    Attributes:
        name: the same on all ranks; empty: its callbacks run in another order on other ranks.
    """

    def __init__(self, unended: Unended, name: str = "") -> None:
        self.unended, self.name = unended, name
        self._lock = threading.Lock()
        self._jobs: deque[Task] = deque()
        self._served = False
        self._for_callbacks: Lane | None = None

    @contextlib.contextmanager
    def callback(self) -> Iterator[None]:
        """Run a callback of this lane in the context."""
        with self._lock:
            if self._for_callbacks is None:
                self._for_callbacks = Lane(self.unended, self.name and f"{self.name}/callbacks")
        outer, _this_thread.lane = _this_thread.lane, self._for_callbacks
        was_checked = _core.check_calls_here(bool(self.name))
        try:
            yield
        finally:
            _this_thread.lane = outer
            _core.check_calls_here(was_checked)

    def here(self) -> Lane:
        """Return the lane for works of this thread: another one inside a callback."""
        return _this_thread.lane or self

    def is_idle(self) -> bool:
        """Return whether all jobs have ended."""
        return not self._served

    def submit(self, job: Task) -> None:
        """Run `job` on another thread, after earlier ones; its exceptions are lost."""
        self.here().append(job)

    def append(self, job: Task) -> None:
        """Like `submit`, but on this lane even in a callback; for jobs that await no callback."""
        self.unended.add(1)
        with self._lock:
            self._jobs.append(job)
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
                job = self._jobs.popleft()
            # Torch stores a callback's exception in the future that `then` returned.
            with self.callback(), contextlib.suppress(Exception):
                job()
            del job  # it holds tensors
            self.unended.add(-1)


class Apart:
    """Gives each job a lane of its own: sends and receives end in any order."""

    def __init__(self, unended: Unended) -> None:
        self.unended = unended

    def here(self) -> Lane:
        """Like `Lane.here`."""
        return Lane(self.unended).here()

    def submit(self, job: Task) -> None:
        """Like `Lane.submit`."""
        self.here().append(job)

    def append(self, job: Task) -> None:
        """Like `Lane.append`."""
        Lane(self.unended).append(job)


LANES: weakref.WeakKeyDictionary[Any, Lane] = weakref.WeakKeyDictionary()
"""The lanes in which futures complete."""


def add_callback(original: Callable[..., Any], future: Any, callback: Callable[..., Any]) -> Any:
    """Torch does not tell whose calls a callback starts, on whichever thread it runs.

    PowerSGD's callbacks start collectives; with several buckets their order differs between ranks.
    """
    lane = LANES.get(future)
    if lane is None:
        return original(future, callback)

    def run(done: Any) -> Any:
        with lane.callback():
            return callback(done)

    added = original(future, run)
    if added is not None:  # `then` returns a future, `add_done_callback` None
        LANES[added] = lane
    return added


def collect_all(original: Callable[..., Any], futures: list[Any]) -> Any:
    """The callbacks of the future that torch returns may also start collectives."""
    collected = original(futures)
    if lane := next(filter(None, map(LANES.get, futures)), None):
        LANES[collected] = lane
    return collected
