"""The trained models, and the ways to train them together; imports no torch."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.bench.collective.contender import Contender, Endpoint
from hccl_py.bench.collective.rank import Rank, time_each


@dataclass(frozen=True)
class Way:
    """A way to train together, or a training without communication as its reference.

    Calling it in a rank makes a process group.

    Attributes:
        title: in the tables.
        model: how the model is wrapped: alone, ddp, fast_ddp or fsdp2.
        silent: the same contender without communication; None: this one has none.
        backend: of its process group; fake is torch's, which moves nothing between ranks.
        rival: the contender over gloo that it is compared with.
    """

    title: str
    model: str
    silent: str | None = None
    backend: str = "hccl"
    rival: str = "gloo"

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
    "silent_fsdp2": Way("FSDP2, silent", "fsdp2", None, "fake", "gloo_fsdp2"),
    "gloo_fsdp2": Way("FSDP2, gloo", "fsdp2", "silent_fsdp2", "gloo", "gloo_fsdp2"),
    "fsdp2": Way("FSDP2, hccl", "fsdp2", "silent_fsdp2", "hccl", "gloo_fsdp2"),
}
"""By the name in --json."""

MODELS = {"digits": 64, "transformer": 2}
"""The models, each with a rank's number of samples in a step."""


def train(rank: Rank, contender: int, model: str, batch: int) -> tuple[int, float]:
    """Run `TrainingContender.train` in a rank."""
    trained: Any = rank.contenders[contender]
    found: tuple[int, float] = trained.train(model, batch)
    return found


def choose(rank: Rank, what: str) -> None:
    """Make `time_each` time the step or the all_reduce of every contender, in a rank."""
    trained: Any = rank.contenders
    rank.calls = [getattr(one, what) for one in trained]
    rank.call = trained[0].gradients


def time_round(
    rank: Rank, contender: int, calls: int, warmup: int
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the seconds of each call, and the CPU seconds of this rank for one, in a rank."""
    time_each(rank, contender, warmup, 0, False)
    began_s = time.process_time()
    seconds = time_each(rank, contender, calls, 0, False)
    return seconds, (time.process_time() - began_s) / calls
