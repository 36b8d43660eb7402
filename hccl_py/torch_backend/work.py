"""The `torch.distributed.Work` of an hccl collective, and our errors as torch's.

C++ (DDP's reducer, functional collectives) uses only `wait` and `get_future` of a Work; Python
uses the rest. A Work is never None, and its future's value is always a list of tensors: C++ reads
both without a check. Who completes futures stands in `torch_threads.py`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from operator import attrgetter
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from hccl_py.torch_backend.arguments import Call, write_back
from hccl_py.torch_backend.future_threads import Lane
from hccl_py.torch_backend.types import seconds_of
from hccl_py.transport.errors import (
    Blame,
    CollectiveTimeoutError,
    CommunicatorError,
    HcclError,
    InvalidArgumentError,
)


class Native(Protocol):
    """What a Work of torch's stands on: the engine's own Work, or what behaves like it."""

    @property
    def source(self) -> int | None:
        """The rank that a receive heard from."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until it is over; raise what went wrong."""

    def done(self) -> bool:
        """Tell whether it is over."""

    def exception(self) -> BaseException | None:
        """Return what went wrong."""


TensorsFuture = Future[list[Tensor]]

SMALL_BYTES = 4096
"""Outputs that a finished Work keeps alive: at most 1 MB for the 256 that a group remembers."""


_num_bytes = attrgetter("nbytes")  # in C: a work that ends is part of every asynchronous call


def _num_sparse_bytes(tensor: Tensor) -> int:
    return tensor._indices().nbytes + tensor._values().nbytes


_BLAME = tuple(field.name for field in fields(Blame))


def as_torch_error(error: HcclError) -> Exception:
    """Return what torch's users expect to catch, caused by `error`; a wrong argument stays one.

    It says who is to blame as `error` does: `.rank`, `.host`, `.pid`, `.cause`, and so on.
    """
    if isinstance(error, InvalidArgumentError):
        return error
    message = str(error)
    if isinstance(error, CollectiveTimeoutError) and "Timed out" not in message:
        message = f"Timed out: {message}"
    translated: Exception = dist.DistBackendError(message)
    if isinstance(error, CommunicatorError):
        for name in _BLAME:
            setattr(translated, name, getattr(error, name))
    translated.__cause__ = error
    return translated


class FinishedWork(dist.Work):
    """The Work of a call that has finished already, or that had nothing to send."""

    def __init__(self, results: Sequence[Tensor] = ()) -> None:
        """Remember the outputs, where there is a caller who can ask for them."""
        super().__init__()
        self._results = list(results)

    def wait(self, timeout: timedelta | float = timedelta(0)) -> bool:
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True: what failed raised in the call itself."""
        return True

    def exception(self) -> Exception | None:
        """Return None."""
        return None

    def result(self) -> list[Tensor]:
        """Return the outputs; none for the shared Work of synchronous calls."""
        return self._results

    def source_rank(self) -> int:
        """Return -1: no receive from any rank ends in this class."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> TensorsFuture:
        """Return a completed future."""
        future: TensorsFuture = Future()
        future.set_result(self._results)
        return future


class HcclWork(dist.Work):
    """A collective in flight.

    The engine keeps the buffers alive until it is done, whether or not anyone keeps this object.
    Who drops it may have handed it to C++, some of which keeps only the half that is its own, and
    would wait in the base class, which never ends. So it stays with `last_works` then. That must
    not keep hundreds of tensors alive: once the end was seen too, large outputs are held weakly.
    Small ones stay: DDP's join drops its one-element tensor and asks the finished work for it.
    """

    device: torch.device | None = None
    """The accelerator that results lie on, None: all are in host memory."""
    last_works: deque[dist.Work] | None = None
    """Of the process group."""

    def __init__(self, natives: Sequence[Native], call: Call, lane: Lane | None) -> None:
        """Cover `natives` (several for a coalesced call); `lane` None: a lane of its own."""
        super().__init__()
        self._natives = natives
        self._settled = self._dropped = False
        self._results: Sequence[Tensor] = call.results
        self._weak_results: Sequence[weakref.ref[Tensor]] = ()
        self._copies = call.copies
        self._source = -1
        self._lane = lane
        self._lock = threading.Lock()
        self._future: TensorsFuture | None = None
        if call.copies:
            # Somebody has to write the staged results back even if the caller drops this Work.
            (lane or Lane()).submit(self._wait_quietly, lambda: None)

    def __del__(self) -> None:
        """Stay, for C++; Python calls this but once."""
        if self.last_works is not None:
            self._dropped = True
            if self._settled:
                self._let_go()
            self.last_works.append(self)

    def wait(self, timeout: timedelta | float = timedelta(0)) -> bool:
        """Block until the outputs hold the result.

        Args:
            timeout: how long from now, as a timedelta or in seconds; zero (torch's "no timeout"):
                the deadline of the call.

        Raises:
            DistBackendError: the collective failed, or did not end in time.
        """
        limit_s = seconds_of(timeout) if timeout else 0.0
        deadline = time.monotonic() + limit_s if limit_s > 0 else None
        try:
            for native in self._natives:
                native.wait(deadline and max(deadline - time.monotonic(), 0.0))
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        self._settle()
        return True

    def synchronize(self) -> None:
        """Block until the outputs hold the result."""
        self.wait()

    def order_current_stream(self) -> None:
        """Do nothing: what was waited for is in host memory."""

    def store_stream(self) -> torch.Stream | None:
        """Return the stream that brings the results to the device, None: there is none."""
        return None

    def is_completed(self) -> bool:
        """Tell whether it is over, with the result in place or an exception."""
        if not all(native.done() for native in self._natives):
            return False
        if self.exception() is None:
            self._settle()
        return True

    def is_success(self) -> bool:
        """Tell whether it is over and the result in place."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return what `wait` would raise, None while in flight and after success."""
        for native in self._natives:
            error = native.exception()
            if error is not None:
                return as_torch_error(error) if isinstance(error, HcclError) else error
        return None

    def result(self) -> list[Tensor]:
        """Return the outputs; to C++ that outlives the caller, large ones that are still alive."""
        # Strong ones first: `_let_go`, on another thread, makes the weak ones before it drops them.
        results = list(self._results)
        return results or [tensor for weak in self._weak_results if (tensor := weak()) is not None]

    def source_rank(self) -> int:
        """Return the rank that a receive from any rank took its data from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> TensorsFuture:
        """Return a future of the output tensors, always the same one.

        Its callbacks run on a thread of the lane, never on the engine's.
        """
        with self._lock:
            future = self._future
            if future is not None:
                return future
            base = self._make_future()
            # C++ reads an exception set from Python as tensors and crashes; chained through
            # `then` it becomes a C++ error.
            self._future = future = base.then(lambda done: done.value())
        results = self.result()
        if self.is_completed():
            self._complete(base, results)
        elif results and all(tensor.numel() == 0 for tensor in results):
            # Nothing has to arrive. And callbacks that follow run here, before the caller's next
            # collective, on all ranks: PowerSGD starts others in them, bucket after bucket.
            base.set_result(results)
        else:
            (self._lane or Lane()).submit(self._wait_quietly, lambda: self._complete(base, results))
        return future

    def _make_future(self) -> TensorsFuture:
        return Future()

    def _complete(self, future: TensorsFuture, results: list[Tensor]) -> None:
        try:
            self.wait()
        except Exception as error:  # whatever it is belongs to who waits for the future
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(results)

    def _wait_quietly(self) -> None:
        """Block until the end; the next `wait` raises what went wrong again."""
        with contextlib.suppress(Exception):
            self.wait()

    def _settle(self) -> None:
        """Write the staged results back, once, and let go of the engine's works."""
        if self._settled:
            return
        with self._lock:
            if self._settled:
                return
            if self._copies:
                write_back(self._copies)
                self._copies = []
            source = self._natives[-1].source if self._natives else None
            self._source = -1 if source is None else source
            self._natives = ()
            self._settled = True
        if self._dropped:
            self._let_go()

    def _let_go(self) -> None:
        """Hold large outputs weakly: what nobody else holds is freed."""
        try:
            num_bytes = sum(map(_num_bytes, self._results))
        except RuntimeError:  # torch does not add up those of a sparse tensor
            num_bytes = sum(map(_num_sparse_bytes, self._results))
        if num_bytes > SMALL_BYTES:
            self._weak_results = [weakref.ref(tensor) for tensor in self._results]
            self._results = ()
            self._future = None


class WorkAsNative:
    """A Work of ours as one of the parts of a coalesced one."""

    source = None

    def __init__(self, work: HcclWork) -> None:
        """Wrap `work`."""
        self._work = work

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until it is over."""
        HcclWork.wait(self._work, timedelta(seconds=timeout_s or 0))

    def order_current_stream(self) -> None:
        """Have the current stream wait for its results, where they come to a device."""
        self._work.order_current_stream()

    def store_stream(self) -> torch.Stream | None:
        """Return the stream that brings its results to a device."""
        return self._work.store_stream()

    def done(self) -> bool:
        """Tell whether it is over."""
        return self._work.is_completed()

    def exception(self) -> BaseException | None:
        """Return its error."""
        return self._work.exception()
