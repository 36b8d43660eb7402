"""A rank's facts about its copy of the trained parameters, and the comparison with other ranks.

Ranks compare through the group's store, without collectives, because other ranks may be anywhere in
their programs. No thread of the program waits for it.
"""

import functools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import _get_default_store

from hccl_py.fingerprint import REDUCING
from hccl_py.integrations.guard.first_step import has_ranks
from hccl_py.observe.flight_recorder import recorders_of_process
from hccl_py.observe.statistics import read_statistics
from hccl_py.torch_backend import NAME
from hccl_py.transport.threads import start_without_signals

_MOST_PARAMETERS, _MOST_ELEMENTS = 64, 64
"""Most parameters, and elements of each, in a digest."""
_GRACE_S = 0.5
_BETWEEN_PARTS = ("send", "recv", "all_to_all")
_SHORTEST_S, _LONGEST_S = 0.05, 10.0
"""Pause between two reads of the store: some ranks may never store their copy."""


class ReplicaTraffic(NamedTuple):
    """The work of all groups and communicators of this process so far.

    Attributes:
        reduced: elements that were reduced over ranks.
        between_parts: calls of the kinds in pipeline and expert parallelism, where ranks hold
        parts.
    """

    reduced: int
    between_parts: int


def traffic() -> ReplicaTraffic:
    """Return the counts so far."""
    cores = [recorder.engine for recorder in recorders_of_process()]
    counted = [read_statistics(core)["calls"] for core in cores if core is not None]
    recorded = list(_recorded_by_torch())
    return ReplicaTraffic(
        sum(calls[name]["elements"] for calls in counted for name in REDUCING if name in calls)
        + sum(elements for name, elements in recorded if "reduce" in name),
        sum(calls[name]["calls"] for calls in counted for name in _BETWEEN_PARTS if name in calls)
        + sum(any(kind in name for kind in _BETWEEN_PARTS) for name, _ in recorded)
        + sum(_point_to_point.values()),
    )


def _recorded_by_torch() -> Iterator[tuple[str, int]]:
    """Yield name and elements of the other backends' last calls.

    Torch's flight recorder has the last 2,000 calls of gloo and of NCCL.
    """
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(_distributed_c10d, name, None)
        dumped = json.loads(dump(True, False)) if dump is not None else {}  # also ended calls
        for call in dumped.get("entries", ()):
            backend, _, kind = call["profiling_name"].partition(":")
            if not backend.startswith(NAME):  # ours are counted by their communicators
                yield kind, sum(map(math.prod, call["input_sizes"]))


_point_to_point = Counter[str]()


@functools.cache  # once in a process
def count_point_to_point() -> None:
    """Count the calls `send` and `recv` of gloo from now on: no recorder has them."""
    for name in ("send", "recv"):
        setattr(dist.ProcessGroup, name, _counted(getattr(dist.ProcessGroup, name)))


def _counted(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def counted(*arguments: Any, **named: Any) -> Any:
        _point_to_point[call.__name__] += 1
        return call(*arguments, **named)

    return counted


def communicates() -> bool:
    """Return whether this process has made a group or a communicator."""
    return bool(recorders_of_process() or next(_recorded_by_torch(), None))


class Job(NamedTuple):
    """A default group of several ranks; `store` has room for the guard under `prefix`."""

    store: Any
    prefix: str
    rank: int
    world_size: int


def job_of_process() -> Job | None:
    """Return the job of the default group, if that has several ranks."""
    if not has_ranks():
        return None
    group: Any = dist.group.WORLD
    communicator = getattr(group, "communicator", None)
    name = communicator.flight_recorder.member.id.hex() if communicator else group.group_name
    prefix = f"hccl/guard/{name}"
    return Job(_get_default_store(), prefix, dist.get_rank(), dist.get_world_size())


def trained(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that the next step changes."""
    held = [each for group in optimizer.param_groups for each in group["params"]]
    with_gradient = [each for each in held if each.grad is not None]
    # A step with a closure computes its own gradients.
    return with_gradient or [each for each in held if each.requires_grad]


def are_sharded(parameters: Sequence[Tensor]) -> bool:
    """Return whether ranks hold parts of some parameters: FSDP, ZeRO 3, tensor parallel."""
    for each in parameters:
        placements = getattr(each, "placements", ())  # of a DTensor
        if any(not placement.is_replicate() for placement in placements):
            return True
        if hasattr(each, "ds_id") or type(each).__name__ == "FlatParameter":
            return True
    return False


def shapes(parameters: Sequence[Tensor]) -> str:
    """Return a digest of the shapes and types, which do not change."""
    described = [(tuple(each.shape), str(each.dtype)) for each in parameters]
    return blake2b(repr(described).encode(), digest_size=8).hexdigest()


def values(parameters: Sequence[Tensor]) -> str:
    """Return a digest of sampled values of sampled parameters."""
    made = blake2b(digest_size=8)
    for each in parameters[:: max(1, len(parameters) // _MOST_PARAMETERS)]:
        local = each.to_local() if hasattr(each, "to_local") else each
        flat = local.detach().flatten()
        some = flat[:: max(1, flat.numel() // _MOST_ELEMENTS)]
        made.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


class Replica(NamedTuple):
    """A rank's copy after a number of steps, the same on all compared ranks."""

    shapes: str
    at_start: str
    now: str
    reduces_some: bool  # in every step, as a user's own scheme may


class Comparison:
    """The copies of all ranks after one step, collected by rank 0 on its own thread."""

    def __init__(self, job: Job, key: str, mine: Replica) -> None:
        """Start; `key` is the same on all ranks, and not used otherwise."""
        self.copies: list[Replica] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._exchange, args=(job, key, mine), daemon=True)
        start_without_signals(self._thread)

    def end(self, timeout_s: float) -> None:
        """Wait for the other ranks' copies up to `timeout_s`, then stop."""
        self._thread.join(timeout_s)
        self.stop()
        # The interpreter must not end while the thread is in torch's C++. A thread that waits for a
        # dead store never returns, which is harmless.
        self._thread.join(_GRACE_S)

    def stop(self) -> None:
        """Stop waiting for the other ranks."""
        self._stop.set()

    def _exchange(self, job: Job, key: str, mine: Replica) -> None:
        store = job.store
        keys = [f"{job.prefix}/{key}/{each}" for each in range(job.world_size)]
        try:
            store.set(keys[job.rank], json.dumps(mine))
            if job.rank:
                return
            # Short reads: a wait inside the store would block its other users.
            pause_s = _SHORTEST_S
            while not store.check(keys):
                if self._stop.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, _LONGEST_S)
            self.copies = [Replica(*json.loads(store.get(each))) for each in keys]
        except Exception:  # the store is gone, and so is the job
            return
