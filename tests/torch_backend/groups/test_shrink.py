"""shrink_group of torch on our groups: after a death, by request, the default group and others."""

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hccl_py.schedulers.ports import free_port

shrink_group = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group"
)


def sum_of_ones(group: dist.ProcessGroup | None = None) -> int:
    data = torch.ones(10)
    dist.all_reduce(data, group=group)
    return int(data[0])


def die_after_the_others(rank: int, victim: int, world_size: int, store: dist.Store) -> None:
    """Kill `victim` once all ranks are here: in a call before, its death would be another error."""
    store.set(f"here/{rank}", "")
    if rank == victim:
        store.wait([f"here/{other}" for other in range(world_size)])
        os.kill(os.getpid(), signal.SIGKILL)


def train_a_step(rank: int, world_size: int) -> None:
    """DistributedDataParallel averages what the ranks that are left compute."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    model(torch.full((1, 3), float(rank))).sum().backward()
    (gradient,) = (parameter.grad for parameter in model.parameters())
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.full((1, 3), (world_size - 1) / 2))
    weights = [torch.empty(1, 3) for _ in range(world_size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(weight, weights[0]) for weight in weights)


def goes_on_after_a_death(rank: int, world_size: int) -> str:
    dist.init_process_group("hccl", timeout=timedelta(seconds=30))
    sub_group = dist.new_group([0, 1, 2, 3])
    assert sum_of_ones() == world_size
    die_after_the_others(rank, 1, world_size, dist.distributed_c10d._get_default_store())
    with pytest.raises(dist.DistBackendError) as caught:
        while True:
            sum_of_ones()
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    left = dist.shrink_group([1])
    assert (dist.get_world_size(), dist.get_rank()) == (3, [0, None, 1, 2][rank])
    assert left is dist.group.WORLD
    assert dist.get_process_group_ranks(left) == [0, 1, 2]
    assert sum_of_ones() == 3
    train_a_step(dist.get_rank(), 3)
    with pytest.raises(ValueError, match="not initialized"):
        dist.all_reduce(torch.ones(1), group=sub_group)  # torch destroyed it
    dist.destroy_process_group()
    return "done"


@shrink_group
def test_training_goes_on_after_a_death() -> None:
    results = run_ranks(goes_on_after_a_death, 4, victims=[1])
    assert results == ["done", None, "done", "done"]


def store_dies_with_rank_0(rank: int, world_size: int, port: int) -> int | None:
    """The first rendezvous was at a store of rank 0; groups that are made later need none."""
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, wait_for_workers=False)
    dist.init_process_group("hccl", store=store, rank=rank, world_size=world_size)
    assert sum_of_ones() == world_size
    die_after_the_others(rank, 0, world_size, store)
    with pytest.raises(dist.DistBackendError):
        while True:
            sum_of_ones()
    dist.shrink_group([0])
    part = dist.new_group([0, 2])
    found = sum_of_ones(part) if rank != 2 else None
    assert sum_of_ones(dist.new_group()) == 3
    dist.destroy_process_group()
    return found


@shrink_group
def test_new_group_after_a_shrink_needs_no_store() -> None:
    results = run_ranks(store_dies_with_rank_0, 4, free_port(), victims=[0])
    assert results == [None, 2, None, 2]


def receive_for_ever(rank: int, sub_group: dist.ProcessGroup) -> dist.Work | None:
    """Begin a call that can never end; None: another rank has aborted the group already."""
    try:
        return dist.irecv(torch.ones(1), src=1 if rank != 1 else 2, group=sub_group)
    except dist.DistBackendError as error:
        assert "SHRINK_ABORT" in str(error)
        return None


def leaves_one_out(rank: int, world_size: int, flags: int) -> list[int]:
    sub_group = dist.new_group([1, 2, 3], timeout=timedelta(seconds=20))
    if rank == 0:
        return []
    work = receive_for_ever(rank, sub_group) if flags else None
    if rank == 2:
        # Group rank 1; torch says that excluded ranks do not take part.
        if work is not None:
            with pytest.raises(dist.DistBackendError, match="SHRINK_ABORT"):
                work.wait()
        return []
    left = dist.shrink_group([1], group=sub_group, shrink_flags=flags)
    if work is not None:
        with pytest.raises(dist.DistBackendError, match="SHRINK_ABORT"):
            work.wait()
    assert sum_of_ones(left) == 2
    data = torch.tensor([rank])
    dist.broadcast(data, src=3, group=left)  # a global rank
    assert int(data) == 3
    return dist.get_process_group_ranks(left)


def leaves_one_out_of_a_sub_group(rank: int, world_size: int, flags: int) -> list[int]:
    found = leaves_one_out(rank, world_size, flags)
    assert sum_of_ones() == world_size  # the default group is as it was
    return found


@shrink_group
@pytest.mark.parametrize("flags", [0, 1], ids=["SHRINK_DEFAULT", "SHRINK_ABORT"])
def test_sub_group_shrinks_and_the_default_group_goes_on(flags: int) -> None:
    found = run_ranks(leaves_one_out_of_a_sub_group, 4, flags, backend="hccl")
    assert found == [[], [1, 3], [], [1, 3]]
