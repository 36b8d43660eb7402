"""register: tensors that move with all their views, and models whose buffers are registered."""

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from tiers import by_night
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py
from hccl_py.transport.arena import arena_of_this_process

STEPS = 4


pytestmark = pytest.mark.skipif(
    os.environ.get("HCCL_TRANSPORT", "auto") != "auto", reason="ranks share no memory"
)


def is_in_arena(tensor: torch.Tensor) -> bool:
    return arena_of_this_process().holds(tensor.data_ptr(), tensor.numel() * tensor.itemsize)


def num_rendezvous() -> int:
    return int(dist.group.WORLD.statistics()["rendezvous"])  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 1025, 3_000_001])
def test_register_moves_a_tensor_and_all_its_aliases(count: int) -> None:
    tensor = torch.arange(count, dtype=torch.float32)
    aliases = [tensor.view(-1), tensor[count // 2 :], tensor.detach(), nn.Parameter(tensor)]
    assert not is_in_arena(tensor)
    assert hccl_py.register(tensor) is tensor
    assert all(is_in_arena(one) for one in (tensor, *aliases))
    assert torch.equal(tensor, torch.arange(count, dtype=torch.float32))
    tensor.mul_(2)
    assert torch.equal(aliases[1], 2 * torch.arange(count, dtype=torch.float32)[count // 2 :])
    place = tensor.data_ptr()
    hccl_py.register(aliases[1])  # a view of it: nothing is left to do
    assert tensor.data_ptr() == place


def test_registered_tensor_frees_its_memory_with_its_last_view() -> None:
    gc.collect()  # what earlier tests have left would go meanwhile
    before, in_shm = arena_of_this_process().num_allocated(), os.statvfs("/dev/shm").f_bfree
    descriptors = len(os.listdir("/proc/self/fd"))
    tensor = hccl_py.register(torch.ones(1_000_000))
    assert os.statvfs("/dev/shm").f_bfree == in_shm
    view = tensor[5:]
    del tensor
    gc.collect()
    assert float(view.sum()) == 999_995
    assert arena_of_this_process().num_allocated() > before
    del view
    assert arena_of_this_process().num_allocated() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: torch.from_numpy(np.zeros(4)), "borrows its memory"),
        (lambda: torch.zeros(3).share_memory_(), "shared with other processes"),
        (lambda: torch.zeros(3).to_sparse(), "dense CPU tensor"),
        (lambda: torch.zeros(3, device="meta"), "dense CPU tensor"),
        (lambda: np.zeros(3), "use hccl_py.empty"),
        (lambda: nn.Linear(2, 2), "got Linear"),
    ],
)
def test_register_says_why_it_cannot(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(hccl_py.InvalidArgumentError, match=problem) as caught:
        hccl_py.register(make())
    assert "hccl_py.empty" in str(caught.value)


def model() -> nn.Module:
    torch.manual_seed(0)
    # Buckets and shards of more than 256 KiB, which is where collectives run in place.
    return nn.Sequential(*(nn.Sequential(nn.Linear(500, 500), nn.Tanh()) for _ in range(4)))


def train(network: nn.Module, rank: int) -> list[torch.Tensor]:
    """Return the parameters after a few steps, on other data on every rank."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    random = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(8, 500, generator=random)
        network(inputs).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def check_ddp(rank: int, world_size: int, options: dict[str, Any]) -> None:
    expected = train(DistributedDataParallel(model(), **options), rank)
    assert num_rendezvous() == 0
    network = hccl_py.register(DistributedDataParallel(model(), **options))
    got = train(network, rank)
    assert num_rendezvous() >= STEPS
    for ours, plain in zip(got, expected, strict=True):
        if world_size == 2:  # to halve is exact, before or after the sum
            assert torch.equal(ours, plain)
        torch.testing.assert_close(ours, plain)
    buckets = arena_of_this_process().num_allocated()
    assert buckets >= sum(one.numel() * 4 for one in network.parameters())
    del network
    dist.destroy_process_group()  # it remembers its last works, whose futures hold the buckets
    gc.collect()
    assert arena_of_this_process().num_allocated() == 0


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (2, {"gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 1.5}),
        (3, {"find_unused_parameters": True}),
        *by_night("training", (2, {}), (2, {"gradient_as_bucket_view": True})),
    ],
)
def test_ddp_with_registered_buckets_trains_alike(world_size: int, options: dict[str, Any]) -> None:
    run_ranks(check_ddp, world_size, options, backend="hccl")


def check_fsdp(rank: int, world_size: int) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    def sharded() -> FSDPModule:
        network = model()
        for layer in network:  # type: ignore[attr-defined]
            fully_shard(layer)
        return fully_shard(network)

    expected = train(sharded(), rank)
    assert num_rendezvous() == 0
    network = hccl_py.register(sharded())
    got = train(network, rank)
    # Every step gathers every layer (the last one is kept for backward) and reduces its gradients.
    assert num_rendezvous() >= STEPS * (4 + 4)
    for ours, plain in zip(got, expected, strict=True):
        assert torch.equal(ours.to_local(), plain.to_local())  # type: ignore[attr-defined]
    after_steps = arena_of_this_process().num_allocated()
    train(network, rank)
    assert arena_of_this_process().num_allocated() == after_steps, "steps find buffers again"
    del network, got, ours
    gc.collect()
    assert arena_of_this_process().num_allocated() == 0


@pytest.mark.nightly("training")
@pytest.mark.parametrize("world_size", [2, 3])
def test_fully_sharded_model_with_registered_buffers_trains_alike(world_size: int) -> None:
    run_ranks(check_fsdp, world_size, backend="hccl")
