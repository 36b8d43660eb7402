"""The staged calls of a group, whose tensors lie on an accelerator, in their order.

A thread issues a call that does not block, once the device has copied its tensors to the host.
Meanwhile the caller queues work for the device. All ranks must issue the calls of a group in one
order, so a later call waits until the earlier ones are issued. That depends on this rank's device
alone. `call.py` is one such call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hccl_py.torch_backend.arguments import Call
from hccl_py.torch_backend.future_threads import THREADS, Lane
from hccl_py.torch_backend.staging.call import StagedCall, Streams
from hccl_py.torch_backend.work import HcclWork

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator


class Staging:
    """The staged calls of one group."""

    def __init__(self, communicator: Communicator, set_busy: Callable[[bool], None]) -> None:
        """Issue them on `communicator`; `set_busy` is told while other calls must drain them."""
        self._communicator = communicator
        self._set_busy = set_busy
        self._streams: dict[torch.device, Streams] = {}
        self._changed = threading.Condition()
        self._calls: deque[StagedCall] = deque()
        self._issuing = False
        # A lane without callbacks: a callback that waits for a Work must not hold the Work up.
        self._landing = Lane()

    def run(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> None:
        """Run a call to its end, and have the current stream wait for its results."""
        self.drain()
        staged = self._staged(call, method, calls)
        staged.run()
        staged.order_current_stream()

    def start(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], lane: Lane | None
    ) -> HcclWork:
        """Return the Work of a call that is issued after those before it.

        The lane is that of the group's futures; None: the call may end before earlier ones.
        """
        staged = self._staged(call, method, calls)
        work = HcclWork([staged], call.results, lane, staged=[staged])
        with self._changed:
            self._calls.append(staged)
            starts = not self._issuing
            if starts:
                self._set_issuing(True)
        if starts:
            THREADS.run(self._issue)
        (Lane() if lane is None else self._landing).append(staged.land)
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
            staged.issue()
            del staged  # it holds tensors

    def _set_issuing(self, issuing: bool) -> None:
        self._issuing = issuing
        self._set_busy(issuing)

    def _staged(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> StagedCall:
        device = call.device
        assert device is not None
        if device not in self._streams:
            self._streams[device] = Streams(torch.Stream(device), torch.Stream(device))
        return StagedCall(self._communicator, self._streams[device], call, method, calls)
