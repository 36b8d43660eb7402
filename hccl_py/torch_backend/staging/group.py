"""The staged calls of a group, whose tensors lie on an accelerator: their order, and their Work.

A thread issues a call that does not block, once the device has copied its tensors to the host.
Meanwhile the caller queues work for the device. All ranks must issue the calls of a group in one
order, so a later call waits until the earlier ones are issued. That depends on this rank's device
alone. `call.py` is one such call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from hccl_py.torch_backend.arguments import Call
from hccl_py.torch_backend.future_threads import THREADS, Lane
from hccl_py.torch_backend.staging.call import StagedCall, Streams
from hccl_py.torch_backend.state import GroupState
from hccl_py.torch_backend.work import HcclWork, TensorsFuture


class Staging:
    """The staged calls of one group."""

    def __init__(self, state: GroupState) -> None:
        """Serve the group of `state`."""
        self._state = state
        self._streams: dict[torch.device, Streams] = {}
        self._changed = threading.Condition()
        self._calls: deque[StagedCall] = deque()
        self._issuing = False
        # A lane without callbacks: a callback that waits for a Work must not hold the Work up.
        self._landing = Lane()

    def run(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], timeout_s: float | None
    ) -> None:
        """Run a call to its end, and have the current stream wait for its results."""
        self.drain()
        staged = self._staged(call, method, calls, timeout_s)
        staged.run(self._state.communicator)
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
            calls: its arguments, one tuple per call.
            timeout_s: of each.
            lane: of the group's futures; None: the call may end before earlier ones.
        """
        staged = self._staged(call, method, calls, timeout_s)
        assert call.device is not None
        work = StagedWork([staged], call.results, call.device, lane)
        with self._changed:
            self._calls.append(staged)
            starts = not self._issuing
            if starts:
                self._set_issuing(True)
        if starts:
            THREADS.run(self._issue)
        (Lane() if lane is None else self._landing).append(staged.land, lambda: None)
        return work

    def drain(self) -> None:
        """Block until every staged call before this one is issued."""
        with self._changed:
            self._changed.wait_for(lambda: not self._issuing)

    def _issue(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._set_issuing(False)
                    self._changed.notify_all()
                    return
                staged = self._calls.popleft()
            staged.issue(self._state.communicator)
            del staged  # it holds tensors

    def _set_issuing(self, issuing: bool) -> None:
        """Send other calls of the group down the slow path, which drains, or no longer."""
        self._issuing = self._state.staging_busy = issuing
        self._state.choose_path()

    def _staged(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], timeout_s: float | None
    ) -> StagedCall:
        device = call.device
        assert device is not None
        streams = self._streams.get(device)
        if streams is None:
            streams = Streams(torch.Stream(device), torch.Stream(device))
            streams = self._streams.setdefault(device, streams)
        group = self._state.rank, self._state.world_size, timeout_s
        return StagedCall(call, streams, method, calls, group)


class StagedWork(HcclWork):
    """The Work of a staged call. Waiting for it blocks the host only until the network is done.

    After `wait` the current stream comes after the results. So do the callbacks of the future.
    """

    device: torch.device

    def __init__(
        self,
        parts: Sequence[StagedCall | HcclWork],
        results: Sequence[Tensor],
        device: torch.device,
        lane: Lane | None = None,
    ) -> None:
        """Cover `parts`, at least one of them staged; `lane` None: a lane of its own."""
        self.device = device
        self._parts = tuple(parts)
        super().__init__(self._parts, results, lane)

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the results are on their way; the current stream waits for their arrival."""
        super().wait(timeout)
        self.order_current_stream()
        return True

    def order_current_stream(self) -> None:
        """Make this thread's current stream wait for the results."""
        for part in self._parts:
            part.order_current_stream()

    def _make_future(self) -> TensorsFuture:
        return Future(devices=[self.device])

    def _complete(self, future: Future[list[Tensor]], results: list[Tensor]) -> None:
        # The future takes an event from each device's current stream; the user's would be wrong.
        with self.store_stream():
            super()._complete(future, results)

    def store_stream(self) -> torch.Stream:
        """Return the stream on which the results arrive."""
        streams = (part.store_stream() for part in self._parts)
        return next(stream for stream in streams if stream is not None)
