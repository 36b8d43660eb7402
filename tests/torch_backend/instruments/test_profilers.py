"""torch.profiler names hccl's collectives, with their shapes, their group and all of their time."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

METADATA = {
    "Collective name": "_allgather_base",
    "dtype": "Float",
    "In msg nelems": 6,
    "Out msg nelems": 12,
    "Group size": 2,
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}


def profile_calls(rank: int, world_size: int, path: str) -> dict[str, list[Any]]:
    """Return the shapes of each event of hccl by its name, in order."""
    network = DistributedDataParallel(nn.Linear(3, 1))
    part, whole = torch.ones(3, 2), torch.ones(6, 2)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_gather_single(whole, part)
        dist.barrier()
        if rank == 0:
            dist.send(part, 1)
        else:
            dist.recv(part, 0)
        network(torch.ones(2, 3)).sum().backward()
    profile.export_chrome_trace(f"{path}{rank}")
    found: dict[str, list[Any]] = {}
    for event in profile.events() or ():
        if event.name.startswith(("hccl:", "c10d::")):
            found.setdefault(event.name, []).append(event.input_shapes)
    return found


def test_calls_are_named_with_their_shapes_and_group(tmp_path: Path) -> None:
    found = run_ranks(profile_calls, 2, str(tmp_path / "trace"), backend="hccl")
    for rank, (moved, operator) in enumerate([("send", "send"), ("recv", "recv_")]):
        assert found[rank] == {
            "hccl:all_gather": [[[3, 2]]],
            "c10d::_allgather_base_": [[[3, 2]]],
            "hccl:barrier": [[]],
            "c10d::barrier": [[]],
            f"hccl:{moved}": [[[3, 2]] if rank == 0 else []],
            f"c10d::{operator}": [[[3, 2]] if rank == 0 else []],
            "hccl:all_reduce": [[[4]]],
            "c10d::allreduce_": [[[4]]],  # the bucket of DDP
        }
        events = json.loads((tmp_path / f"trace{rank}").read_text())["traceEvents"]
        (event,) = [event for event in events if event.get("name") == "c10d::_allgather_base_"]
        expected = {**METADATA, "Rank": rank}
        assert {name: event["args"].get(name) for name in expected} == expected


def come_late(rank: int, world_size: int) -> float | None:
    """Rank 1 calls once rank 0 has; return by how much rank 0's event outlasts that moment."""
    store, tensor = dist.distributed_c10d._get_default_store(), torch.ones(2)
    if rank == 1:
        store.wait(["issued"])
        store.set("late", str(time.monotonic_ns()))
        dist.all_reduce(tensor)
        return None
    with torch.profiler.profile() as profile:
        work = dist.all_reduce(tensor, async_op=True)
        issued_ns = time.monotonic_ns()
        store.set("issued", "")
        assert work is not None
        work.wait()
        work.get_future().wait()  # the profiler's callback was there first
    late_us = (int(store.get("late")) - issued_ns) / 1000
    (event,) = [event for event in profile.events() or () if event.name == "hccl:all_reduce"]
    return event.time_range.elapsed_us() - late_us


def test_event_of_an_asynchronous_call_lasts_until_the_last_rank_came() -> None:
    longer_us, _ = run_ranks(come_late, 2, backend="hccl")
    assert longer_us > 0


def profile_again_and_again(rank: int, world_size: int) -> None:
    tensor = torch.ones(2)
    for _ in range(100):
        with torch.profiler.profile() as profile:
            works = [dist.all_reduce(tensor, async_op=True) for _ in range(8)]
            for work in works[:4]:
                assert work is not None
                work.wait()
        names = [event.name for event in profile.events() or ()]
        assert names.count("hccl:all_reduce") == len(works)


@pytest.mark.nightly("calls")
def test_events_of_calls_in_flight_end_before_the_profiler() -> None:
    """The profiler frees its events; one that ended after that crashed the rank."""
    run_ranks(profile_again_and_again, 2, backend="hccl")


def profile_in_another_thread(rank: int, world_size: int) -> list[str]:
    profiling, called = threading.Event(), threading.Event()
    names: list[str] = []

    def profile() -> None:
        config = torch.profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=config) as profile:
            profiling.set()
            assert called.wait(30)
        names.extend(event.name for event in profile.events() or ())

    thread = threading.Thread(target=profile)
    thread.start()
    assert profiling.wait(30)
    dist.all_reduce(torch.ones(1))
    called.set()
    thread.join()
    return names


def test_profiler_of_another_thread_sees_the_calls_of_this_one() -> None:
    (names,) = run_ranks(profile_in_another_thread, 1, backend="hccl")
    assert "hccl:all_reduce" in names
