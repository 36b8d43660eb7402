"""Shows calls to torch's profilers, as events with the names of gloo's and the metadata of NCCL's.

    c10d::allreduce_    the call; its metadata has the names that Kineto gives NCCL's
    hccl:all_reduce     its execution, until its outputs hold the result

NCCL's metadata is in an event record_param_comms. An event of that name needs a C++ object that
Python cannot make; without it the profiler crashes.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import (  # type: ignore[attr-defined]
    _record_function_with_args_enter,
    _record_function_with_args_exit,
)
from torch.futures import Future

from hccl_py.torch_backend.checks.arguments import Call
from hccl_py.torch_backend.instruments.modes import OPERATORS
from hccl_py.torch_backend.work import FINISHED, HcclWork

_C10D: Any = torch._C._distributed_c10d
_name_of_user = getattr(_C10D, "_get_comm_profiling_name", str)
"""Returns the value of `dist.record_comm`, "" outside of it or in a torch without it."""


def profiled(group: Any, call: Call, method: str, submit: Callable[[], HcclWork]) -> HcclWork:
    """Submit a call, as events of the profilers that run."""
    named = _name_of_user()
    event = _record_function_with_args_enter(named or f"hccl:{method}", *call.inputs)
    if named:
        _C10D._set_comm_profiling_name("")  # else C++ begins an event of it with each Work
    work = FINISHED
    try:
        with contextlib.nullcontext() if group.is_dispatched else _operator(group, call):
            work = submit()
    finally:
        if named:
            _C10D._set_comm_profiling_name(named)
        if work is FINISHED:
            _record_function_with_args_exit(event)
        else:
            work.get_future().add_done_callback(_Event(event).end)
    return work


def _operator(group: Any, call: Call) -> Any:
    return _RecordFunctionFast(f"c10d::{OPERATORS[call.name]}", call.inputs, _metadata(group, call))


class _Event:
    """The event of a call in flight. It ends with the call, or before the profiler does."""

    def __init__(self, event: torch.Tensor) -> None:
        self._lock = threading.Lock()
        self._ended: Future[None] = Future()
        # Unlike an exit here, a future's callback reaches the profiler of the starting thread.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, self._ended)
        _in_flight.add(self)

    def end(self, *_: object) -> None:
        """End the event, or wait until another thread has."""
        with self._lock:
            if not self._ended.done():
                self._ended.set_result(None)
        _in_flight.discard(self)


_in_flight: set[_Event] = set()


def end_events() -> None:
    """End the events of all calls in flight: their profiler is about to free them."""
    for event in tuple(_in_flight):
        event.end()


def _metadata(group: Any, call: Call) -> dict[str, str | int]:
    """Return a collective's metadata under Kineto's names."""
    sent, received = call.inputs or call.results, call.results or call.inputs
    about: dict[str, str | int] = {
        "Collective name": OPERATORS[call.name].removesuffix("_"),
        "In msg nelems": _count(sent),
        "Out msg nelems": _count(received),
        "Group size": group.size(),
        "Rank": group.rank(),
        "Process Group Name": str(group.getGroupName()),
        "Process Group Description": group.getGroupDesc(),
        "Process Group Ranks": str(group.global_ranks),
    }
    if sent:
        about["dtype"] = sent[0].type().rpartition(".")[2].removesuffix("Tensor")
    return about


def _count(tensors: list[torch.Tensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors)
