"""What the command hands to its ranks: it needs no torch itself, so only a rank imports it."""

from __future__ import annotations

from hccl_py.bench.collective.contender import Contender, Endpoint


def open_contender(name: str, endpoint: Endpoint) -> Contender:
    """Join the process group of one of `contenders.CONTENDERS`."""
    from benchmarks.overlap.training import TrainingContender

    return TrainingContender(name, endpoint)
