"""The `torch.distributed.Work` of an hccl collective, and hccl-py's errors as torch's.

C++ (DDP's reducer, functional collectives) uses only `wait` and `get_future` of a Work; Python
uses the rest. A Work is never None, and its future's value is always a list of tensors: C++ reads
both without a check. `future_threads.py` completes futures.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _register_work
from torch.futures import Future

from hccl_py.torch_backend.checks.arguments import seconds_of, write_back
from hccl_py.torch_backend.future_threads import LANES, Apart, Lane
from hccl_py.torch_backend.staging.calls import StagedCall
from hccl_py.transport.errors import (
    CollectiveTimeoutError,
    CommunicatorError,
    HcclError,
    InvalidArgumentError,
)
from hccl_py.transport.threads import in_users_code

TensorsFuture = Future[list[Tensor]]


class _Search(threading.local):
    """The search of this thread for the HcclWork behind one of C++; see `work_behind`."""

    is_on = False
    found: HcclWork | None = None


_search = _Search()


def as_torch_error(error: HcclError) -> Exception:
    """Return torch's error for `error`; a wrong argument stays InvalidArgumentError.

    It has the text of `error` and the attributes that name the failed rank: `.rank`, `.host`,
    `.pid`, and so on. A traceback prints only this error, because both texts are equal.
    """
    if isinstance(error, InvalidArgumentError):
        return error
    message = str(error)
    if isinstance(error, CollectiveTimeoutError) and "Timed out" not in message:
        message = f"Timed out: {message}"
    translated: Exception = dist.DistBackendError(message)
    if isinstance(error, CommunicatorError):
        for name in CommunicatorError.__annotations__:
            setattr(translated, name, getattr(error, name))
    translated.__cause__ = None  # also suppresses the context
    return translated


def raise_failure(error: HcclError) -> None:
    """Raise torch's error for a failure; return if an argument was wrong."""
    if not isinstance(error, InvalidArgumentError):
        raise as_torch_error(error)


class HcclWork(dist.Work):
    """A collective in flight.

    The engine keeps the buffers alive until the call ends, even without this object. This object
    keeps the outputs alive as long as the caller holds it.
    """

    def __init__(
        self,
        natives: Sequence[Any],
        results: Sequence[Tensor],
        lane: Lane | Apart | None = None,
        copies: Sequence[tuple[Tensor, Tensor]] = (),
        staged: Sequence[StagedCall] = (),
    ) -> None:
        """Cover `natives`: Works of the communicator, staged calls or other works of this class.

        The results of `staged` are on one accelerator. Waiting for them blocks the host only until
        the network is done: the current stream, and the stream of the future's callbacks, wait for
        the results. Futures complete in `lane`; None: the call has ended.
        """
        super().__init__()
        self._natives = natives
        self._results = results
        self._copies = copies
        self._lane = lane
        self.staged = staged
        self._settled = not natives
        self.source: int | None = None
        self.sequence = 0  # of a collective that torch's caller waits for
        self.is_registered = False  # with torch, for `wait_tensor`
        self._lock = threading.Lock()
        self._future: TensorsFuture | None = None
        self._cpp_work: _CppWork | None = None
        if copies:
            # The results are written back even if the caller drops this Work, which keeps an error.
            assert lane is not None
            lane.submit(self.wait)

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the outputs hold the result.

        Args:
            timeout: how long from now, as a timedelta or in seconds; None or zero (torch's "no
                timeout"): the deadline of the call.

        Raises:
            DistBackendError: the collective failed, or did not end in time.
        """
        if self._settled:
            return True
        limit_s = 0.0 if timeout is None else seconds_of(timeout)
        deadline = time.monotonic() + limit_s if limit_s > 0 else None
        try:
            for native in self._natives:
                # Not zero, which means no limit here.
                native.wait(deadline and max(deadline - time.monotonic(), 1e-6))
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # the error is complete
        self._settle()
        for call in self.staged:
            call.order_current_stream()
        if self.is_registered:
            self.is_registered = False
            for tensor in self._results:
                torch.ops._c10d_functional.wait_tensor(tensor)
        return True

    def synchronize(self) -> None:
        """Block until the outputs hold the result."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call has ended, with the result in place or an exception."""
        if not all(native.done() for native in self._natives):
            return False
        if self.exception() is None:
            self._settle()
        return True

    done = is_completed

    def is_success(self) -> bool:
        """Return whether the call has ended and the result is in place."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the exception of `wait`; None while in flight and after success."""
        for native in self._natives:
            error = native.exception()
            if error is not None:
                return as_torch_error(error) if isinstance(error, HcclError) else error
        return None

    def result(self) -> list[Tensor]:
        """Return the outputs."""
        return list(self._results)

    def source_rank(self) -> int:
        """Return the source rank of a receive; -1 for other calls."""
        return -1 if self.source is None else self.source

    _source_rank = source_rank

    def _get_sequence_number(self) -> int:
        return self.sequence

    def get_future(self) -> TensorsFuture:
        """Return a future of the output tensors, always the same one; after `wait` it is done.

        Its callbacks run on a thread of the lane, never on the engine's.
        """
        if _search.is_on:
            _search.found = self
            return _NO_FUTURE
        with self._lock:
            if self._future is not None:
                return self._future
            base: TensorsFuture = Future(devices=[call.device for call in self.staged[:1]])
            # C++ reads an exception set from Python as tensors and crashes; chained through
            # `then` it becomes a C++ error.
            self._future = future = base.then(lambda done: done.value())
        results = self.result()
        if self._lane is None:  # the call was a blocking one
            self._complete(base, results)
            return future
        LANES[future] = lane = self._lane.here()
        if lane.is_idle() and self.is_completed():
            self._complete(base, results)
        else:
            lane.append(lambda: self._complete(base, results))
            lane.unended.await_at_end_of_backward()
            if not self._natives:  # whoever has waited for the call may read the value at once
                future.wait()
        return future

    def _complete(self, future: TensorsFuture, results: list[Tensor]) -> None:
        # The future records the current stream, which must not be the caller's.
        with self.staged[0].streams.store if self.staged else contextlib.nullcontext():
            try:
                self.wait()
            except Exception as error:  # raised by a wait for the future
                with in_users_code():  # the callbacks
                    future.set_exception(error)  # type: ignore[arg-type]
            else:
                with in_users_code():
                    future.set_result(results)

    def _settle(self) -> None:
        with self._lock:
            if not self._natives:
                return
            if self._copies:
                write_back(self._copies)
                self._copies = ()
            self.source = self._natives[-1].source
            self._natives = ()
            # Each wait for an accelerator's results is for the current stream.
            self._settled = not self.staged
            if self._settled and self._cpp_work is not None:
                self._cpp_work.work = None

    def for_cpp(self) -> dist.Work:
        """Return a Work for C++ that ends with this one and then keeps no outputs alive."""
        with self._lock:
            if self._settled:
                return FINISHED
            if self._cpp_work is None:
                self._cpp_work = _CppWork(self)
            return self._cpp_work


def is_searching() -> bool:
    """Return whether `work_behind` runs on this thread."""
    return _search.is_on


def work_behind(work: dist.Work) -> HcclWork | None:
    """Return the HcclWork that C++ has wrapped in `work`, or None.

    C++ passes on `get_future`, on this thread, so the HcclWork can name itself.
    """
    _search.is_on = True
    try:
        work.get_future()
    except RuntimeError:  # other backends' works may have no future
        pass
    finally:
        _search.is_on, found, _search.found = False, _search.found, None
    return found


class _CppWork(dist.Work):
    def __init__(self, work: HcclWork) -> None:
        super().__init__()
        self.work: HcclWork | None = work

    def wait(self, timeout: timedelta | float = timedelta(0)) -> bool:
        """Block until the call has ended."""
        work = self.work
        return work is None or work.wait(timeout)


_registered: deque[dist.Work] = deque(maxlen=256)


def register_for_wait_tensor(tensor: Tensor, work: dist.Work) -> None:
    """Have torch's `wait_tensor(tensor)` wait for `work`.

    C++ keeps only the C++ half of a Work that Python passes to it. Once Python frees its half, C++
    waits in the base class for ever. So this module keeps a Work without outputs for C++.
    """
    held = work.for_cpp() if isinstance(work, HcclWork) else work
    _registered.append(held)
    _register_work(tensor, held)


class _CoalescedWork(dist.Work):
    def _reject(self, *_: object) -> Any:
        raise InvalidArgumentError(
            "calls in a block of coalesced calls begin at its end, and have no Work of their own; "
            "wait for `_coalescing_manager(..., async_ops=True) as works` after the block"
        )

    wait = synchronize = is_completed = is_success = _reject  # type: ignore[assignment]
    exception = result = get_future = _reject


COALESCED = _CoalescedWork()
"""The Work of each call in a coalesced block: one Work covers all of them."""

_NO_FUTURE: TensorsFuture = Future()

FINISHED = HcclWork((), ())
"""The Work of every synchronous call, shared because making one costs more."""
