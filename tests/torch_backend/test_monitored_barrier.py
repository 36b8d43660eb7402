"""A monitored barrier without a limit of time to wait raises at once, as gloo's does."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from ranks import run_ranks


def check_zero(rank: int, world_size: int) -> str:
    group = dist.new_group()
    dist.barrier()
    began_s = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="Timed out after 0 s") as caught:
        dist.monitored_barrier(group, timedelta(0), wait_all_ranks=True)
    assert time.monotonic() - began_s < 5
    return str(caught.value).partition("; ")[2]


def test_monitored_barrier_without_time_raises_at_once() -> None:
    assert run_ranks(check_zero, 3, backend="hccl") == ["rank(s) 1, 2 did not come"] * 3


def check_alone(rank: int, world_size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(0))


def test_monitored_barrier_of_one_rank_needs_no_time() -> None:
    run_ranks(check_alone, 1, backend="hccl")
