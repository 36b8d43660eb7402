"""What is trained, and how its gradients are averaged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """A way to average gradients, or a training without communication to compare it with.

    Attributes:
        title: in the tables.
        silent: the contender that does the same without communication; None: this one is silent.
        backend: of its process group.
    """

    title: str
    silent: str | None = None
    backend: str = "hccl"


CONTENDERS = {
    "none": Way("model alone"),
    "silent_ddp": Way("DDP, silent"),
    "gloo": Way("DDP, gloo", "silent_ddp", "gloo"),
    "hccl": Way("DDP, hccl", "silent_ddp"),
    "silent_fast_ddp": Way("fast_ddp, silent"),
    "fast_ddp": Way("fast_ddp, hccl", "silent_fast_ddp"),
}
"""By the name in --json."""

MODELS = {"digits": 64, "transformer": 2}
"""What is trained, and how many samples a rank takes in a step."""
