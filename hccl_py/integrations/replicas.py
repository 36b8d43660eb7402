"""A rank's facts about its copy of the trained parameters, and the comparison with other ranks.

Ranks compare through the group's store, without collectives, because other ranks may be anywhere in
their programs. No thread of the program waits for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hccl_py.fingerprint import REDUCING
from hccl_py.observe.flight_recorder import recorders_of_process
from hccl_py.observe.statistics import read_statistics
from hccl_py.transport.threads import start_without_signals

_MOST_PARAMETERS, _MOST_ELEMENTS = 64, 64
"""Most parameters, and elements of each, in a digest."""
_GRACE_S = 0.5
_BETWEEN_PARTS = ("send", "recv", "all_to_all")
_SHORTEST_S, _LONGEST_S = 0.05, 10.0
"""Pause between two reads of the store: some ranks may never store their copy."""


class ReplicaTraffic(NamedTuple):
    """The work of all communicators of this process so far.

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
    return ReplicaTraffic(
        sum(calls[name]["elements"] for calls in counted for name in REDUCING if name in calls),
        sum(calls[name]["calls"] for calls in counted for name in _BETWEEN_PARTS if name in calls),
    )


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

    def __init__(self, store: Any, key: str, rank: int, world_size: int, mine: Replica) -> None:
        """Start; `store` and `key` are the same on all ranks, and not used otherwise."""
        self.copies: list[Replica] | None = None
        self._stop = threading.Event()
        arguments = (store, key, rank, world_size, mine)
        self._thread = threading.Thread(target=self._exchange, args=arguments, daemon=True)
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

    def _exchange(self, store: Any, key: str, rank: int, world_size: int, mine: Replica) -> None:
        try:
            store.set(f"{key}/{rank}", json.dumps(mine))
            if rank:
                return
            keys = [f"{key}/{each}" for each in range(world_size)]
            # Short reads: a wait inside the store would block its other users.
            pause_s = _SHORTEST_S
            while not store.check(keys):
                if self._stop.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, _LONGEST_S)
            self.copies = [Replica(*json.loads(store.get(each))) for each in keys]
        except Exception:  # the store is gone, and so is the job
            return
