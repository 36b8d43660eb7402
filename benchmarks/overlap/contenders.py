"""What is trained, and how its gradients are averaged; needs no torch itself."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

from hccl_py.bench.collective.contender import Contender, Endpoint, Timed
from hccl_py.bench.collective.rank import Rank


@dataclass(frozen=True)
class Way:
    """A way to average gradients, or a training without communication to compare it with.

    Calling it joins a process group of its own, in a rank.

    Attributes:
        title: in the tables.
        model: what is trained: alone, ddp or fast_ddp.
        silent: the contender that does the same without communication; None: this one is silent.
        backend: of its process group.
    """

    title: str
    model: str
    silent: str | None = None
    backend: str = "hccl"

    def __call__(self, endpoint: Endpoint) -> Contender:
        """Open it."""
        from benchmarks.overlap.training import TrainingContender

        return TrainingContender(self, endpoint)


CONTENDERS = {
    "none": Way("model alone", "alone"),
    "silent_ddp": Way("DDP, silent", "ddp"),
    "gloo": Way("DDP, gloo", "ddp", "silent_ddp", "gloo"),
    "hccl": Way("DDP, hccl", "ddp", "silent_ddp"),
    "silent_fast_ddp": Way("fast_ddp, silent", "fast_ddp"),
    "fast_ddp": Way("fast_ddp, hccl", "fast_ddp", "silent_fast_ddp"),
}
"""By the name in --json."""

MODELS = {"digits": 64, "transformer": 2}
"""What is trained, and how many samples a rank takes in a step."""


def train(rank: Rank, contender: int, model: str, batch: int, data: Any) -> tuple[int, float]:
    """Have a contender make a model, in a rank; see `TrainingContender.train`."""
    trained: Any = rank.contenders[contender]
    found: tuple[int, float] = trained.train(model, batch, data)
    return found


def time_training(rank: Rank, contender: int, what: str, warmup: int, calls: int) -> list[float]:
    """Time what follows the first `warmup` calls, in a rank; return the seconds of each.

    Args:
        rank: this one.
        contender: whose calls.
        what: step or all_reduce, of `TrainingContender`.
        warmup: untimed calls.
        calls: timed ones.
    """
    call: Timed = getattr(rank.contenders[contender], what)
    rank.barriers[contender]()
    for _ in range(warmup):
        call()
    clock, times = time.perf_counter, []
    gc.disable()
    for _ in range(calls):
        begin = clock()
        call()
        times.append(clock() - begin)
    gc.enable()
    return times
