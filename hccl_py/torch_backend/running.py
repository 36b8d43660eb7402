"""Running a checked call on the communicator: inline or in the background, and what it returns."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    PrefixStore,
    _register_work,
)
from torch._C._distributed_c10d import (
    _allow_inflight_collective_as_graph_input as _in_flight_allowed,
)
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.communicator import Communicator
from hccl_py.torch_backend.arguments import Call, write_back
from hccl_py.torch_backend.future_threads import Lane
from hccl_py.torch_backend.staging.group import StagedWork, Staging
from hccl_py.torch_backend.surface import GroupOptions, TorchSurface
from hccl_py.torch_backend.types import timeout_s
from hccl_py.torch_backend.work import FinishedWork, HcclWork, WorkAsNative, as_torch_error
from hccl_py.transport.errors import HcclError

FINISHED = FinishedWork()
"""What every synchronous call returns: making a Work costs more than asking this one."""

_name_of_user = getattr(torch._C._distributed_c10d, "_get_comm_profiling_name", str)
"""What `dist.record_comm` has set; "" outside of it, and in a torch that has no such thing."""

GROUPS: weakref.WeakSet[RunningGroup] = weakref.WeakSet()
"""All of this process; `torch_groups.py` ends them."""


class RunningGroup(TorchSurface):
    """A group that can run calls; the collectives stand in the class above."""

    def __init__(self, communicator: Communicator, options: Any) -> None:
        """Stand on `communicator`, which the group owns from now on."""
        super().__init__(communicator, options)
        GROUPS.add(self)
        self._rank = options.group_rank
        self._world_size = options.group_size
        self._lane = Lane()
        # Dropped by Python; see `HcclWork`.
        self._last_works: deque[dist.Work] = deque(maxlen=256)
        self._coalescing = threading.local()

    @cached_property
    def _staging(self) -> Staging:
        return Staging(self)

    def _run(self, call: Call, opts: Any, method: str, *calls: tuple[Any, ...]) -> dist.Work:
        """Call the communicator's `method` once per argument tuple, inline or in the background."""
        if _profiler_enabled():
            return self._run_recorded(call, opts, method, calls)
        return self._run_now(call, opts, method, calls)

    def _run_now(
        self, call: Call, opts: Any, method: str, calls: Sequence[tuple[Any, ...]]
    ) -> dist.Work:
        if call.fake:
            return FinishedWork(call.results)
        limit_s = timeout_s(opts)
        self._sequence_number += len(calls)
        try:
            if call.device is not None:
                if opts.asyncOp:
                    staging = self._staging
                    return self._remember(staging.start(call, method, calls, limit_s, self._lane))
                self._staging.run(call, method, calls, limit_s)
                return FINISHED
            if opts.asyncOp:
                start = getattr(self._communicator.nonblocking, method)
                natives = [start(*arguments, timeout_s=limit_s) for arguments in calls]
                return self._remember(HcclWork(natives, call, self._lane))
            finish = getattr(self._communicator, method)
            for arguments in calls:
                finish(*arguments, timeout_s=limit_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        write_back(call.copies)
        return FINISHED

    def _run_recorded(
        self, call: Call, opts: Any, method: str, calls: Sequence[tuple[Any, ...]]
    ) -> dist.Work:
        name = _name_of_user() or f"hccl:{method}"
        with torch.autograd.profiler.record_function(name) as event:
            work = self._run_now(call, opts, method, calls)
            if opts.asyncOp:
                event._call_end_callbacks_on_future(work.get_future())
        return work

    def _transfer(
        self, call: Call, method: str, buffer: Tensor, peer: int | None, tag: int
    ) -> dist.Work:
        if call.fake:
            return FinishedWork(call.results)
        if call.device is not None:
            arguments = buffer, peer, tag
            return self._remember(self._staging.start(call, method, [arguments], None, None))
        try:
            native = getattr(self._communicator.nonblocking, method)(buffer, peer, tag)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        # Transfers end in any order, so each has a lane of its own.
        return self._remember(HcclWork([native], call, None))

    def _remember(self, work: HcclWork) -> HcclWork:
        work.last_works = self._last_works
        if _in_flight_allowed():
            # wait_tensor may be all that ever waits for it.
            for tensor in work.result():
                _register_work(tensor, work)
        together: list[HcclWork] | None = getattr(self._coalescing, "works", None)
        if together is not None:
            together.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works that this thread starts until `_end_coalescing`."""
        self._coalescing.works = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """Return one Work for all that were started since `_start_coalescing`."""
        works: list[HcclWork] = self._coalescing.works
        self._coalescing.works = None
        call = Call("coalesced")
        call.results = [tensor for work in works for tensor in work.result()]
        call.device = next((work.device for work in works if work.device is not None), None)
        kind = HcclWork if call.device is None else StagedWork
        return self._remember(kind([WorkAsNative(work) for work in works], call, None))

    def _abandon_coalescing(self) -> None:
        """Collect no longer: what was to be done together has raised."""
        self._coalescing.works = None

    def shutdown(self) -> None:
        """Leave the group in good order; later calls fail."""
        self._communicator.close()
        self._last_works.clear()

    def abort(self) -> None:
        """Fail everything in flight, here and on the other ranks."""
        self._communicator.abort("ProcessGroup.abort() was called")

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, pg_options: object = None
    ) -> RunningGroup:
        """Return a group of the other ranks; `dist.shrink_group` puts it in the place of this one.

        Ranks that have died are left out whether they are named or not.

        Args:
            ranks_to_exclude: of this group; the same on all others, which all have to call.
            shrink_flags: SHRINK_ABORT ends what is in flight first.
            pg_options: there is nothing to set.

        Raises:
            DistBackendError: on all ranks that called: too few came, or they could not connect.
        """
        if shrink_flags:
            self._communicator.abort("shrink_group was called with SHRINK_ABORT")
        try:
            left = self._communicator.shrink(ranks_to_exclude)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        # Ranks of the default group, whose list is empty, are numbered anew.
        ranks = [self._global_ranks[rank] for rank in left.old_ranks if self._global_ranks]
        recorder = left.flight_recorder
        # What this group has left in its store is none of the next one's.
        store = PrefixStore(f"shrunk/{recorder.group.id}", self._store)
        options = GroupOptions(left.rank, left.world_size, store, ranks, left.name)
        everybody = tuple(ranks) or tuple(range(left.world_size))
        recorder.group = recorder.group._replace(global_ranks=everybody)
        return type(self)(left, options)
