"""Groups whose tensors lie on an accelerator: the order of their calls, and what they return.

A call that does not block is issued by a thread, once the device has copied its tensors to the
host: the caller goes on queueing work for the device. All ranks must issue the calls of a group in
one order, so whatever is called meanwhile waits until those before it are issued, which depends on
this rank's device alone. `torch_staging_call.py` is one such call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.futures import Future

from hccl_py.communicator import Communicator
from hccl_py.torch_backend.arguments import Call
from hccl_py.torch_backend.future_threads import THREADS, Lane
from hccl_py.torch_backend.staging.call import StagedCall, Streams
from hccl_py.torch_backend.work import HcclWork, TensorsFuture, WorkAsNative
from hccl_py.transport.errors import InvalidArgumentError

_IN_ORDER = frozenset(
    (
        *("all_reduce", "broadcast", "reduce", "barrier", "all_gather", "reduce_scatter"),
        *("all_to_all", "gather", "scatter", "send", "recv", "subset", "split", "shrink"),
    )
)
"""What of a communicator has to come after the staged calls before it."""


class _Behind:
    """Stands where a group's communicator was while staged calls of the group wait for the device.

    Calls on host memory need not ask then whether there are any.
    """

    def __init__(self, calls: Any, staging: Staging) -> None:
        """Stand where `calls` was: a communicator, or the nonblocking calls of one."""
        self.__dict__.update(calls=calls, staging=staging)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["calls"], name)
        if name == "nonblocking":
            return _Behind(value, self.__dict__["staging"])
        return partial(self._in_turn, value) if name in _IN_ORDER else value

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["calls"], name, value)

    def _in_turn(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        for argument in arguments:
            if isinstance(argument, Tensor) and not argument.is_cpu:
                # It is to be staged, and comes here again: it need not wait for the others.
                raise InvalidArgumentError(f"expected host memory, got {argument.device}")
        self.__dict__["staging"].drain()
        return method(*arguments, **options)


class Staging:
    """The staged calls of one group."""

    def __init__(self, group: Any) -> None:
        """Serve `group`, which has to have a `_communicator`, a `_rank` and a `_world_size`."""
        self._group = group
        self._streams: dict[torch.device, Streams] = {}
        self._changed = threading.Condition()
        self._calls: deque[StagedCall] = deque()
        self._issuing = False
        # No callbacks here: one that waits for a work must not be what the work waits for.
        self._landing = Lane()

    def run(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], timeout_s: float | None
    ) -> None:
        """Run a call to its end, and have the current stream wait for its results."""
        self.drain()
        staged = self._staged(call, method, calls, timeout_s)
        staged.run(self._group._communicator)
        staged.order_current_stream()

    def start(
        self,
        call: Call,
        method: str,
        calls: Sequence[tuple[Any, ...]],
        timeout_s: float | None,
        lane: Lane | None,
    ) -> StagedWork:
        """Return the Work of a call that is issued after those before it.

        Args:
            call: checked.
            method: of the communicator.
            calls: its arguments, as often as it is to be called.
            timeout_s: of each.
            lane: of the group's futures; None: the call may end before earlier ones.
        """
        staged = self._staged(call, method, calls, timeout_s)
        work = StagedWork([staged], call, lane)
        with self._changed:
            self._calls.append(staged)
            starts = not self._issuing
            if starts:
                self._issuing = True
                real = self._group._communicator
                self._group._communicator = cast(Communicator, _Behind(real, self))
        if starts:
            THREADS.run(lambda: self._issue(real))
        (Lane() if lane is None else self._landing).append(staged.land, lambda: None)
        return work

    def drain(self) -> None:
        """Block until every staged call before this one is issued."""
        with self._changed:
            self._changed.wait_for(lambda: not self._issuing)

    def _issue(self, communicator: Communicator) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._issuing = False
                    self._group._communicator = communicator
                    self._changed.notify_all()
                    return
                staged = self._calls.popleft()
            staged.issue(communicator)
            del staged  # it holds tensors

    def _staged(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], timeout_s: float | None
    ) -> StagedCall:
        device = call.device
        assert device is not None
        streams = self._streams.get(device)
        if streams is None:
            streams = Streams(torch.Stream(device), torch.Stream(device))
            streams = self._streams.setdefault(device, streams)
        group = self._group._rank, self._group._world_size, timeout_s
        return StagedCall(call, streams, method, calls, group)


class StagedWork(HcclWork):
    """The Work of a staged call. Waiting for it blocks the host only until the network is done.

    After that what the current stream does comes after the results; so do callbacks of its future,
    and whoever waits for that.
    """

    def __init__(
        self, parts: Sequence[StagedCall | WorkAsNative], call: Call, lane: Lane | None
    ) -> None:
        """Cover `parts`, at least one of them staged; `lane` None: a lane of its own."""
        assert call.device is not None
        self.device = call.device
        self._parts = tuple(parts)
        # Its end writes them back.
        bare = Call(call.name)
        bare.results = call.results
        super().__init__(self._parts, bare, lane)

    def wait(self, timeout: timedelta | float = timedelta(0)) -> bool:
        """Block until the results are on their way; the current stream waits for their arrival."""
        super().wait(timeout)
        self.order_current_stream()
        return True

    def order_current_stream(self) -> None:
        """Have what this thread's current stream does from now on come after the results."""
        for part in self._parts:
            part.order_current_stream()

    def _make_future(self) -> TensorsFuture:
        assert self.device is not None
        return Future(devices=[self.device])

    def _complete(self, future: Future[list[Tensor]], results: list[Tensor]) -> None:
        # The future takes an event from each device's current stream, which is not to be the one
        # on which the user computes.
        with self.store_stream():
            super()._complete(future, results)

    def store_stream(self) -> torch.Stream:
        """Return the stream on which the results arrive."""
        streams = (part.store_stream() for part in self._parts)
        return next(stream for stream in streams if stream is not None)
