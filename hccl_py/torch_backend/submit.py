"""Runs the calls of a group on its communicator: inline, in the background, or staged."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    _allow_inflight_collective_as_graph_input as _in_flight_allowed,
)
from torch.autograd import profiler
from torch.utils import _python_dispatch as modes

from hccl_py.calls.communicator_state import UNISSUED
from hccl_py.calls.recording import reject_in_capture
from hccl_py.calls.work import Work
from hccl_py.torch_backend import owns
from hccl_py.torch_backend.checks.arguments import Backends, Call, write_back
from hccl_py.torch_backend.checks.overlap import require_apart, require_coalesced_apart
from hccl_py.torch_backend.future_threads import Apart, Lane, Unended, lane_here
from hccl_py.torch_backend.instruments.modes import show_to_modes
from hccl_py.torch_backend.instruments.profilers import profiled
from hccl_py.torch_backend.staging.calls import StagedCall, Streams
from hccl_py.torch_backend.work import (
    COALESCED,
    FINISHED,
    HcclWork,
    as_torch_error,
    register_for_wait_tensor,
)
from hccl_py.transport.errors import HcclError

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator

    class _Base:
        """The stub's overloads name C++ signatures that no Python method can match."""

        def __init__(self, rank: int, world_size: int) -> None: ...
        def rank(self) -> int: ...  # noqa: D102
        def size(self) -> int: ...  # noqa: D102
else:
    _Base = object


class CallingGroup(_Base):
    """The half of a group that passes calls to its communicator; the other is a class of torch's.

    Attributes:
        is_dispatched: torch's dispatcher made the call, and has shown it to torch's instruments.
        communicator: carries the data.
        entry, background_entry: make calls from C++ that block, and that return a Work; None while
            also calls on plain host tensors need checks.
        unended: counts the threads' unfinished jobs for works of the group.
        lane: where the futures of the group's collectives complete, in order.
        apart: where the futures of its sends and receives complete, in any order.
    """

    is_dispatched = False

    def __init__(self, communicator: Communicator) -> None:
        """Own `communicator` from now on."""
        # The constructor with a store is broken for Python subclasses in torch 2.13.
        super().__init__(communicator.rank, communicator.world_size)
        self.unended = Unended()
        self.lane = Lane(self.unended, communicator.name)
        self.apart = Apart(self.unended)
        self._backends: Backends | None = None
        self._blocks: dict[int, list[tuple[Call, str, Any]]] = {}  # of coalesced calls, by thread
        self._streams: dict[torch.device, Streams] = {}
        self._changed = threading.Condition()
        self._unissued = 0
        self.own(communicator)
        # Lanes without callbacks: a callback that waits for a Work must not hold the Work up.
        self._issuing, self._landing = Lane(self.unended), Lane(self.unended)

    def own(self, communicator: Communicator) -> None:
        """Make the calls on `communicator` from now on."""
        self._rank, self._world_size = communicator.rank, communicator.world_size
        self.communicator = communicator
        self._set_entries()
        self._for_callbacks: dict[Lane, Communicator] = {}

    def carrier(self) -> Communicator:
        """Return the communicator for a collective of this thread.

        Collectives of callbacks have their own: see `future_threads.py`.
        """
        lane = lane_here()
        if lane is None:
            return self.communicator
        if lane not in self._for_callbacks:
            name = f"{self.communicator.name}/{lane.name}"
            made = self.communicator.subset(range(self._world_size), name)
            made.exclude_from_groups()
            self._for_callbacks[lane] = made
        return self._for_callbacks[lane]

    def carriers(self) -> list[Communicator]:
        """Return the communicators of the group; that of its own calls is the last."""
        return [*self._for_callbacks.values(), self.communicator]

    @property
    def backends(self) -> Backends:
        """The user's backends for the group, as in "cpu:gloo,cuda:hccl"; others' are rejected.

        Torch gives such a group to hccl only, and passes its devices after it was made.
        """
        if self._backends is None:
            names: Any = dist.distributed_c10d._world.pg_backend_config
            config = names.get(self, "")
            pairs = [pair.split(":") for pair in config.split(",")]
            others = dict(pair for pair in pairs if len(pair) == 2 and not owns(pair[1]))
            self.backends = Backends(config, others)
        return self._backends or Backends()

    @backends.setter
    def backends(self, backends: Backends) -> None:
        self._backends = backends
        self._set_entries()

    def _set_entries(self) -> None:
        known, made_by = self._backends, self.communicator
        checked = self._unissued or self._blocks or known is None or "cpu" in known.others
        self.entry = None if checked else made_by.entry
        self.background_entry = None if checked else made_by.nonblocking.entry

    def submit(self, call: Call, method: str, *calls: tuple[Any, ...]) -> dist.Work:
        """Call the communicator's `method` once per argument tuple, by the options.

        Raises:
            DistBackendError: a blocking call failed, or a call could not be started.
        """
        if modes._is_in_non_infra_torch_dispatch_mode and not self.is_dispatched:
            show_to_modes(self, call, calls)
        if call.fake:
            return HcclWork((), call.results)
        require_apart(call, method, calls, self._rank, self._world_size)
        block = self._blocks.get(threading.get_ident()) if self._blocks else None
        if block is not None:
            block.append((call, method, calls))
            return COALESCED if call.opts is None or call.opts.asyncOp else FINISHED
        work = self._begin(call, method, calls)
        return work if work is FINISHED else self._keep(work)

    def _begin(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> HcclWork:
        if not profiler._is_profiler_enabled:
            return self._submit(call, method, calls)
        return profiled(self, call, method, lambda: self._submit(call, method, calls))

    def _submit(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> HcclWork:
        is_transfer = call.opts is None  # a send or a receive
        lane = self.apart if is_transfer else self.lane
        background = is_transfer or call.opts.asyncOp
        if call.copies or call.device is not None:
            reject_in_capture("copies around a collective", "use contiguous tensors in host memory")
        try:
            if call.device is not None:
                if background:
                    return self._start_staged(call, method, calls, lane)
                self._run_staged(call, method, calls)
                return FINISHED
            self.drain()
            limit_s = call.timeout_s()
            communicator = self.communicator if is_transfer else self.carrier()
            if background:
                start = getattr(communicator.nonblocking, method)
                natives = [start(*arguments, timeout_s=limit_s) for arguments in calls]
                return HcclWork(natives, call.results, lane, call.copies)
            run = getattr(communicator, method)
            for arguments in calls:
                run(*arguments, timeout_s=limit_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        if call.copies:
            write_back(call.copies)
        return FINISHED

    def started(self, native: Work, results: list[Tensor], lane: Lane | Apart) -> dist.Work:
        """Return the Work of a call that needed no checks."""
        return self._keep(HcclWork([native], results, lane))

    def _keep(self, work: HcclWork) -> HcclWork:
        work.is_registered = _in_flight_allowed()
        engine: Any = self.communicator._state.calls.engine
        work.sequence = 0 if engine is None else engine.sequence()
        if work.is_registered and not self.is_dispatched:  # torch registers a dispatched one
            for tensor in work.result():
                register_for_wait_tensor(tensor, work)
        return work

    def drain(self) -> None:
        """Block until all earlier staged calls are issued."""
        if self._unissued:
            with self._changed:
                self._changed.wait_for(lambda: not self._unissued)

    def _run_staged(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> None:
        self.drain()
        staged = self._staged(call, method, calls)
        staged.issue()
        staged.land()
        staged.wait()
        staged.order_current_stream()

    def _start_staged(
        self, call: Call, method: str, calls: Sequence[tuple[Any, ...]], lane: Lane | Apart
    ) -> HcclWork:
        """Return the Work of a call that is issued after the earlier ones.

        `lane` is for its futures; `apart`: the call may end before earlier ones.
        """
        staged = self._staged(call, method, calls)
        work = HcclWork([staged], call.results, lane, staged=[staged])
        with self._changed:
            self._unissued += 1
            UNISSUED[self.communicator] = self.drain
            self._set_entries()
        self._issuing.append(lambda: self._issue(staged))
        (lane if lane is self.apart else self._landing).append(staged.land)
        return work

    def _issue(self, staged: StagedCall) -> None:
        staged.issue()
        with self._changed:
            self._unissued -= 1
            if not self._unissued:
                UNISSUED.pop(self.communicator, None)
                self._set_entries()
                self._changed.notify_all()

    def _staged(self, call: Call, method: str, calls: Sequence[tuple[Any, ...]]) -> StagedCall:
        device = call.device
        assert device is not None
        if device not in self._streams:
            self._streams[device] = Streams(torch.Stream(device), torch.Stream(device))
        communicator = self.communicator if call.opts is None else self.carrier()
        return StagedCall(communicator, self._streams[device], call, method, calls)

    def _start_coalescing(self, device: torch.device) -> None:
        with self._changed:
            self._blocks[threading.get_ident()] = []
            self._set_entries()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        block = self.abandon_coalescing()
        require_coalesced_apart(block, self._rank)
        works = [self._begin(*one) for one in block]
        results = [tensor for work in works for tensor in work.result()]
        staged = [call for work in works for call in work.staged]
        return self._keep(HcclWork(works, results, self.apart, staged=staged))

    def abandon_coalescing(self) -> list[tuple[Call, str, Any]]:
        """Stop collecting; return the calls of this thread's block, none of which has begun."""
        with self._changed:
            block = self._blocks.pop(threading.get_ident(), [])
            self._set_entries()
        return block
