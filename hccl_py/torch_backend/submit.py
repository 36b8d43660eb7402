"""Runs a checked call on the communicator, inline, in the background or staged."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    _allow_inflight_collective_as_graph_input as _in_flight_allowed,
)
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.torch_backend.arguments import Call, write_back
from hccl_py.torch_backend.future_threads import Lane
from hccl_py.torch_backend.staging.group import StagedWork, Staging
from hccl_py.torch_backend.state import GroupState
from hccl_py.torch_backend.types import timeout_s
from hccl_py.torch_backend.work import (
    FINISHED,
    FinishedWork,
    HcclWork,
    as_torch_error,
    register_for_wait_tensor,
)
from hccl_py.transport.errors import HcclError
from hccl_py.work import Work

_name_of_user = getattr(torch._C._distributed_c10d, "_get_comm_profiling_name", str)
"""Returns what `dist.record_comm` has set, "" outside of it, and in a torch that lacks it."""


class Submitter:
    """Hands the calls of one group to its communicator."""

    def __init__(self, state: GroupState) -> None:
        """Serve the group of `state`."""
        self._state = state
        self._of_thread = threading.local()

    @cached_property
    def _staging(self) -> Staging:
        staging = Staging(self._state)
        self._state.drain = staging.drain
        return staging

    def submit(self, call: Call, opts: Any, method: str, *calls: tuple[Any, ...]) -> dist.Work:
        """Call the communicator's `method` once per argument tuple, as `opts` asks.

        Raises:
            DistBackendError: a call that blocks failed.
        """
        if not _profiler_enabled():
            return self._submit(call, opts, method, calls)
        name = _name_of_user() or f"hccl:{method}"
        with torch.autograd.profiler.record_function(name) as event:
            work = self._submit(call, opts, method, calls)
            if opts.asyncOp:
                event._call_end_callbacks_on_future(work.get_future())
        return work

    def _submit(
        self, call: Call, opts: Any, method: str, calls: Sequence[tuple[Any, ...]]
    ) -> dist.Work:
        if call.fake:
            return FinishedWork(call.results)
        state, limit_s = self._state, timeout_s(opts)
        state.sequence_number += len(calls)
        try:
            if call.device is not None:
                if opts.asyncOp:
                    work = self._staging.start(call, method, calls, limit_s, state.lane)
                    return self._keep(work)
                self._staging.run(call, method, calls, limit_s)
                return FINISHED
            state.drain()
            if opts.asyncOp:
                start = getattr(state.communicator.nonblocking, method)
                natives = [start(*arguments, timeout_s=limit_s) for arguments in calls]
                return self._keep(HcclWork(natives, call.results, state.lane, call.copies))
            run = getattr(state.communicator, method)
            for arguments in calls:
                run(*arguments, timeout_s=limit_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        write_back(call.copies)
        return FINISHED

    def transfer(
        self, call: Call, method: str, buffer: Tensor, peer: int | None, tag: int
    ) -> dist.Work:
        """Start a send or a receive.

        Raises:
            DistBackendError: it could not be started.
        """
        if call.fake:
            return FinishedWork(call.results)
        if call.device is not None:
            arguments = buffer, peer, tag
            return self._keep(self._staging.start(call, method, [arguments], None, None))
        self._state.drain()
        try:
            native = getattr(self._state.communicator.nonblocking, method)(buffer, peer, tag)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        # Transfers end in any order, so each has a lane of its own.
        return self._keep(HcclWork([native], call.results, None, call.copies))

    def started(self, native: Work, results: list[Tensor], lane: Lane | None) -> dist.Work:
        """Return the Work of a call that the fast path started."""
        return self._keep(HcclWork([native], results, lane))

    def _keep(self, work: HcclWork) -> HcclWork:
        if _in_flight_allowed():
            for tensor in work.result():
                register_for_wait_tensor(tensor, work)
        together: list[HcclWork] | None = getattr(self._of_thread, "works", None)
        if together is not None:
            together.append(work)
        return work

    def start_coalescing(self) -> None:
        """Collect the works that this thread starts until `end_coalescing`."""
        self._of_thread.works = []

    def end_coalescing(self) -> dist.Work:
        """Return one Work for all that were started since `start_coalescing`."""
        works: list[HcclWork] = self._of_thread.works
        self.abandon_coalescing()
        results = [tensor for work in works for tensor in work.result()]
        device = next((work.device for work in works if work.device is not None), None)
        if device is None:
            return self._keep(HcclWork(works, results))
        return self._keep(StagedWork(works, results, device))

    def abandon_coalescing(self) -> None:
        """Collect no longer: the block of calls has raised."""
        self._of_thread.works = None
