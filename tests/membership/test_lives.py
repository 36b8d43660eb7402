"""Groups at one store, one after the other with any number of ranks, and of two jobs at once."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks

from hccl_py import BootstrapError, Communicator
from hccl_py.membership import lives
from hccl_py.schedulers.ports import free_port

LIVES = ((0, 1, 2), (0, 1), (0, 1, 2), (1, 2), (1, 2), (0, 1, 2), (0,), (2, 0), (0, 2, 1))
"""Who takes part, by rank."""
DOORS = ("file", "env", "mixed", "communicator", "no torch")


def live(rank: int, size: int, where: str, value: float = 1.0) -> float:
    limit = timedelta(seconds=HANG_S)
    at = {"init_method": where} if where else {}
    dist.init_process_group("hccl", rank=rank, world_size=size, timeout=limit, **at)
    data = torch.full((3,), value)
    dist.all_reduce(data)
    dist.destroy_process_group()
    return float(data[0])


def live_apart(rank: int, size: int) -> float:
    data = np.ones(3)
    with Communicator(None, rank, size, timeout_s=HANG_S) as comm:
        comm.all_reduce(data)
    return float(data[0])


def live_often(place: int, _size: int, door: str, where: str) -> list[float]:
    if door == "no torch":
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported
    sums = []
    for number, members in enumerate(LIVES):
        if place not in members:
            continue
        member = members.index(place), len(members)
        if door in ("env", "file") or (door == "mixed" and number % 2):
            sums.append(live(*member, where))
        else:
            sums.append(live_apart(*member))
    return sums


@pytest.mark.parametrize(
    "door",
    [
        pytest.param(door, marks=pytest.mark.nightly("faults") if i % 2 else ())
        for i, door in enumerate(DOORS)
    ],
)
def test_lives_of_any_ranks_follow_one_another(door: str, tmp_path: Path) -> None:
    env = {}
    if door == "no torch":
        env = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": ""}
    where = f"file://{tmp_path}/store" if door == "file" else ""
    expected = [[float(len(one)) for one in LIVES if place in one] for place in range(3)]
    assert run_ranks(live_often, 3, door, where, env=env) == expected


def live_on_without_the_first_rank(place: int, _size: int, with_torch: bool) -> list[float]:
    if not with_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported
    sums = [live_apart(place, 3)]
    return sums if place == 0 else [*sums, live_apart(place - 1, 2), live_apart(2 - place, 2)]


@pytest.mark.parametrize("with_torch", [False, True])
def test_ranks_go_on_without_the_one_that_served_their_store(with_torch: bool) -> None:
    env = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": ""}
    sums = run_ranks(live_on_without_the_first_rank, 3, with_torch, env=env)
    assert sums == [[3.0], [3.0, 2.0, 2.0], [3.0, 2.0, 2.0]]


def live_at_its_own_name_of_rank_0(rank: int, size: int, apart: bool) -> float:
    os.environ["MASTER_ADDR"] = "127.0.0.1" if rank else "localhost"
    return live_apart(rank, size) if apart else live(rank, size, "")


@pytest.mark.parametrize("apart", [False, True])
def test_rank_0_may_know_itself_as_localhost(apart: bool) -> None:
    assert run_ranks(live_at_its_own_name_of_rank_0, 2, apart) == [2.0, 2.0]


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


def live_as_a_job_of_its_own(rank: int, size: int, where: str) -> float:
    os.environ.update(MASTER_PORT=str(1 + rank), TORCHELASTIC_RUN_ID=str(rank))
    return live(rank, size, where)


def test_ranks_of_two_jobs_meet_at_an_address() -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    env = {"TORCHELASTIC_USE_AGENT_STORE": ""}
    assert run_ranks(live_as_a_job_of_its_own, 2, where, env=env) == [2.0, 2.0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("old", [b'["name", {}, ["job"], 2]', b"[9, []]"])
def test_store_of_another_version_is_refused_by_name(rank: int, old: bytes) -> None:
    store = dist.HashStore()
    store.set("hccl/open", old)
    with pytest.raises(BootstrapError, match="one version"), lives.life_at(store, rank, 2, 1.0):
        pass


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
    assert run_ranks(live_often, 3, "file", where)[0][:2] == [3.0, 2.0]
