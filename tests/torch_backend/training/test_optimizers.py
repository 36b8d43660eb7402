"""torch.distributed.optim and the averagers of models."""

import pytest
import torch
import torch.distributed as dist
from features import feature
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import batches, model, parameters_of, part_of, train

SECTION = "Optimizers"


def zero_of(network: torch.nn.Module, **options: object) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=0.01, **options)


@feature(SECTION, "ZeroRedundancyOptimizer.consolidate_state_dict")
def test_zero_consolidate(rank: int, world_size: int) -> tuple[dict[int, torch.Tensor], list]:
    """One rank gets the state of all; a new optimizer goes on from it on every rank."""
    network = DistributedDataParallel(model())
    optimizer = zero_of(network)
    train(network, rank, world_size, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=1)
    told = [optimizer.state_dict() if rank == 1 else None]
    dist.broadcast_object_list(told, 1)
    state = {index: one["exp_avg"].clone() for index, one in told[0]["state"].items()}
    again = zero_of(network)
    again.load_state_dict(told[0])
    values = train(network, rank, world_size, optimizer=again)
    return state if rank == 1 else {}, values


def overlapped_alone(world_size: int) -> list[list[torch.Tensor]]:
    """Its first passes leave the parameters as they are: DDP sorts its buckets there."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for inputs, _ in list(batches(6))[3:]:
        optimizer.zero_grad()
        network(inputs).pow(2).mean().backward()
        optimizer.step()
    return [parameters_of(network)] * world_size


def train_overlapped(rank: int, world_size: int, make_hook: object) -> list[torch.Tensor]:
    network = DistributedDataParallel(model(), static_graph=True, bucket_cap_mb=0.0003)
    optimizer = zero_of(network, overlap_with_ddp=True)
    network.register_comm_hook(None, make_hook(allreduce_hook, network, optimizer))
    for inputs, _ in batches(6):
        optimizer.zero_grad()
        network(part_of(inputs, rank, world_size)).pow(2).mean().backward()
        optimizer.step()
    return parameters_of(network)


@feature(SECTION, "ZeroRedundancyOptimizer, parameters_as_bucket_view")
def test_zero_options(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    results = []
    for options in ({}, {"parameters_as_bucket_view": True}):
        network = DistributedDataParallel(model(), bucket_cap_mb=0.0003)
        optimizer = zero_of(network, **options)
        results.append(train(network, rank, world_size, optimizer=optimizer))
    return results


@pytest.mark.nightly("training")
@feature(
    SECTION,
    "hook_with_zero_step (overlap_with_ddp), hook_with_zero_step_interleaved",
    alone=lambda n: [overlapped_alone(n)[:1] * 2] * n,
)
def test_zero_overlaps_with_ddp(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    hooks = (hook_with_zero_step, hook_with_zero_step_interleaved)
    return [train_overlapped(rank, world_size, hook) for hook in hooks]
