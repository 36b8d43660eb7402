"""hccl as one of the backends of torch's own process group, from torch 2.14 on.

A group such as "cpu:hccl,cuda:nccl" has a backend for each device. Torch's dispatcher passes a call
to the backend of its tensors, with torch's hooks, flight recorder and NaN check around it. That
costs about 2 us per call, so a group of hccl alone is a `ProcessGroupHccl` unless the user asks.

C++ calls the methods by the names of torch's `PyBackend.hpp`. It wraps each Work in one that
forwards `wait` and `get_future` only; `compat/torch_2_14.py` adds the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hccl_py.communicator import Communicator
from hccl_py.diagnosis.errors import AFTER_ERROR
from hccl_py.membership.lives import life_at
from hccl_py.torch_backend import owns
from hccl_py.torch_backend.checks.arguments import UNSET_TIMEOUT, Backends, seconds_of
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.torch_backend.groups.identity import GROUPS
from hccl_py.transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hccl_py.observe.flight_recorder import Membership

    _TorchBackend = object  # the stub's overloads name C++ signatures
else:
    _TorchBackend = c10d.Backend

VARIABLE = "HCCL_NATIVE_BACKEND"
IS_SUPPORTED = hasattr(c10d.Backend, "_set_group_uid")
"""Whether a Python class can be a backend: since torch 2.14."""


RECORDS = (
    hasattr(c10d, "FlightRecorderHook")
    and os.environ.get("TORCH_FR_BUFFER_SIZE") != "0"
    and torch.__version__ < "2.15"
)
"""Whether hccl-py attaches torch's flight recorder. From 2.15 on torch does, for any backend."""


def is_alone(config: str) -> bool:
    """Return whether hccl is the backend of all devices."""
    return all(owns(pair.rpartition(":")[2]) for pair in config.lower().split(","))


def is_wanted(config: str) -> bool:
    """Return whether a new group of these backends needs hccl as a backend of torch's group.

    `config` are the user's backends, such as "hccl" or "cpu:hccl,cuda:nccl".
    """
    asked = (
        not is_alone(config)
        or os.environ.get(VARIABLE) == "1"
        or os.environ.get("TORCH_DIST_NAN_CHECK") == "1"
    )
    return IS_SUPPORTED and asked


_wrapped: set[HcclBackend] = set()
"""Until they shut down: torch wraps these in C++, which does not keep the half in Python."""


class HcclBackend(TorchCollectives, _TorchBackend):
    """The backend of one device, or of several, of a torch process group."""

    is_dispatched = True
    recorded: Any = None
    """The new process group, until torch's flight recorder hooks its calls."""
    recorder: Any = None
    """Torch's flight recorder, which hooks the calls from then on."""
    supports_splitting = True

    def __init__(
        self, communicator: Communicator, store: Any, global_ranks: Sequence[int], name: str
    ) -> None:
        """Make a backend that owns `communicator` from now on; see `GroupIdentity`."""
        super().__init__(communicator, store, global_ranks, name)
        self.backends = Backends()  # tensors of other devices go to their backends
        self._abort_hooks: dict[int, Callable[[], None]] = {}
        if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
            _wrapped.add(self)

    def _set_group_uid(self, uid: str) -> None:
        """Have the flight recorder hook the calls: the group has just got all of its backends."""
        super()._set_group_uid(uid)  # type: ignore[misc]
        group, self.recorded = self.recorded, None
        if group is not None and RECORDS:
            hook: Any = c10d.FlightRecorderHook  # type: ignore[attr-defined]
            self.recorder = hook.attach(group)

    def shutdown(self) -> None:
        """Leave the group regularly: see `Communicator.close`. Later calls fail."""
        recorder, self.recorder = self.recorder, None
        _wrapped.discard(self)
        if recorder is not None:
            recorder.remove()  # it holds the group, which holds this backend
        super().shutdown()

    allreduce_sparse = TorchCollectives.allreduce

    def start_coalescing(self) -> None:
        """Collect this thread's calls until `end_coalescing`."""
        self._start_coalescing(torch.device("cpu"))

    def end_coalescing(self) -> dist.Work:
        """Begin the collected calls, and return the Work of all of them."""
        return self._end_coalescing(torch.device("cpu"))

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """Block until every rank calls it; `opts` are torch's BarrierOptions, or a timeout."""
        timeout = getattr(opts, "timeout", opts)
        super().monitored_barrier(None if timeout == UNSET_TIMEOUT else timeout, wait_all_ranks)

    def registerAbortHook(  # noqa: N802
        self, hook_id: int, hook: Callable[[], None]
    ) -> None:
        """Have `hook` called once: before `abort`, or when a call fails or times out."""
        self._abort_hooks[hook_id] = hook

    def unregisterAbortHook(self, hook_id: int) -> None:  # noqa: N802
        """Forget a hook."""
        self._abort_hooks.pop(hook_id, None)

    def run_abort_hooks(self) -> None:
        """Call the hooks, each once; an exception of one is not raised."""
        while self._abort_hooks:
            _, hook = self._abort_hooks.popitem()
            with contextlib.suppress(Exception):
                hook()

    def abort(self) -> None:
        """Fail all calls in flight, here and on the other ranks."""
        self.run_abort_hooks()
        super().abort()

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> HcclBackend:
        """Return the backend of a group of some ranks of this one; torch's `split_group` calls it.

        Raises:
            InvalidArgumentError: this rank is none of them; C++ cannot take None from Python.
        """
        if self._rank not in ranks:
            raise InvalidArgumentError(
                f"split_group: expected rank {self._rank} to be in one of the parts, got "
                f"{list(ranks)}; use torch.distributed.new_group"
            )
        made = self.subset(ranks, opts.group_name, seconds_of(opts._timeout))
        members = [self.global_ranks[rank] for rank in ranks]
        return HcclBackend(made, store, members, opts.group_name)

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> HcclBackend:
        """Return the backend of a group of several jobs' ranks, which meet at `store`."""
        timeout_s = seconds_of(opts._timeout)
        with life_at(store, rank, size, timeout_s) as met:
            made = Communicator(met, rank, size, timeout_s=timeout_s, name=opts.group_name)
        return HcclBackend(made, store, (), opts.group_name)


def backend_of(group: Any) -> TorchCollectives | None:
    """Return hccl's part of a process group: itself, or one of its backends; None without hccl."""
    if isinstance(group, TorchCollectives) or not isinstance(group, dist.ProcessGroup):
        return group if isinstance(group, TorchCollectives) else None
    backends = map(group._get_backend, group._device_types)
    return next((one for one in backends if isinstance(one, HcclBackend)), None)


def _run_abort_hooks(_: Exception, member: Membership) -> None:
    for group in list(GROUPS):
        if isinstance(group, HcclBackend) and group.communicator.flight_recorder.member is member:
            group.run_abort_hooks()


AFTER_ERROR.append(_run_abort_hooks)
