"""Groups at one store, one after the other with any number of ranks, and of two jobs at once."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks

from hccl_py.torch_backend import lives

SIZES = (3, 2, 3, 3, 2, 2, 1, 3)


def live(rank: int, size: int, where: str, value: float = 1.0) -> float:
    limit = timedelta(seconds=HANG_S)
    at = {"init_method": where} if where else {}
    dist.init_process_group("hccl", rank=rank, world_size=size, timeout=limit, **at)
    data = torch.full((3,), value)
    dist.all_reduce(data)
    dist.destroy_process_group()
    return float(data[0])


def live_often(rank: int, _size: int, where: str) -> list[float]:
    return [live(rank, size, where) for size in SIZES if rank < size]


@pytest.mark.parametrize("scheme", ["env", "file"])
def test_lives_of_any_number_of_ranks_follow_one_another(scheme: str, tmp_path: Path) -> None:
    where = f"file://{tmp_path}/store" if scheme == "file" else ""
    expected = [[float(size) for size in SIZES if rank < size] for rank in range(3)]
    assert run_ranks(live_often, 3, where) == expected


def live_in_a_job(place: int, _size: int, where: str, jobs: list[str]) -> str:
    """Be rank 0 or 1 of one of two jobs, whose values are 1 and 100."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    lives._job = lambda: (jobs[place],)
    try:
        return f"{live(place % 2, 2, where, 100.0 if place > 1 else 1.0):g}"
    except dist.DistBackendError as error:
        return str(error)


def test_two_jobs_at_one_file_each_work_by_themselves(tmp_path: Path) -> None:
    jobs = ["a", "a", "b", "b"]
    sums = run_ranks(live_in_a_job, 4, f"file://{tmp_path}/store", jobs)
    assert sums == ["2", "2", "200", "200"]


def test_two_processes_of_one_rank_0_are_named_and_nothing_is_mixed(tmp_path: Path) -> None:
    for told in run_ranks(claim_rank_0, 3, f"file://{tmp_path}/store"):
        assert "two processes claim rank 0" in told or "did not arrive" in told, told


def claim_rank_0(place: int, _size: int, where: str) -> str:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    try:
        return str(live(min(place, 1) if place < 2 else 0, 3, where))
    except dist.DistBackendError as error:
        return str(error)


def leave_a_file(rank: int, _size: int, where: str) -> float:
    dist.init_process_group(
        "hccl", rank=rank, world_size=2, init_method=where, timeout=timedelta(seconds=HANG_S)
    )
    data = torch.ones(3)
    dist.all_reduce(data)
    os._exit(0)


def test_file_left_over_by_a_job_that_was_killed_serves_the_next(tmp_path: Path) -> None:
    where = f"file://{tmp_path}/store"
    run_ranks(leave_a_file, 2, where, victims=[0, 1])
    assert (tmp_path / "store").exists()
    assert run_ranks(live_often, 3, where)[0] == [float(size) for size in SIZES]
