"""DistributedDataParallel: every way to use it that does not need an accelerator."""

import torch
from features import feature
from torch import nn
from torch.distributed._composable import replicate
from torch.nn.parallel import DistributedDataParallel
from training import batches, model, parameters_of, part_of, sgd, train, trained_alone

SECTION = "DistributedDataParallel"


@feature(SECTION, "DistributedDataParallel", world_size=3, alone=trained_alone)
def test_ddp(rank: int, world_size: int) -> list[torch.Tensor]:
    """It sends rank 0's parameters to all, then averages gradients."""
    network = model()
    if rank:
        for parameter in network.parameters():
            parameter.data.zero_()
    return train(DistributedDataParallel(network), rank, world_size)


OPTIONS: tuple[dict[str, object], ...] = (
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.0001},  # every gradient is reduced while the next one is computed
)


@feature(
    SECTION,
    "gradient_as_bucket_view, static_graph, both, several buckets, composable replicate",
    alone=lambda n: [[trained_alone(n)[0]] * (len(OPTIONS) + 1)] * n,
)
def test_ddp_options(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    networks = [DistributedDataParallel(model(), **options) for options in OPTIONS]
    results = [train(network, rank, world_size) for network in [*networks, replicate(model())]]
    storages = {one.grad.untyped_storage().data_ptr() for one in networks[0].parameters()}
    assert len(storages) == 1
    assert networks[-1]._get_ddp_logging_data()["num_buckets_reduced"] > 1
    return results


class Branches(nn.Module):
    """Every call leaves one of two layers unused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, inputs: torch.Tensor, branch: int) -> torch.Tensor:
        return self.layers[branch](inputs)


@feature(SECTION, "find_unused_parameters")
def test_ddp_finds_unused_parameters(rank: int, world_size: int) -> list[torch.Tensor]:
    """Step 0 uses a layer on each rank, step 1 the same on all: the other one gets no gradient."""
    network = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = sgd(network)
    for step, (inputs, _) in enumerate(batches(2)):
        optimizer.zero_grad(set_to_none=True)
        network(part_of(inputs, rank, 2), rank if step == 0 else 1).pow(2).mean().backward()
        optimizer.step()
    return parameters_of(network)


@feature(SECTION, "no_sync")
def test_ddp_no_sync(rank: int, world_size: int) -> list[torch.Tensor]:
    """Gradients of two backward passes are averaged once."""
    network = DistributedDataParallel(model())
    optimizer = sgd(network)
    first, second = (inputs for inputs, _ in batches(2))
    with network.no_sync():
        network(part_of(first, rank, world_size)).pow(2).mean().backward()
    network(part_of(second, rank, world_size)).pow(2).mean().backward()
    optimizer.step()
    return parameters_of(network)


@feature(SECTION, "broadcast_buffers")
def test_ddp_broadcasts_buffers(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    """Running statistics are rank 0's before every forward, unless they were not wanted."""
    every = []
    for wanted in (True, False):
        network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        network = DistributedDataParallel(network, broadcast_buffers=wanted)
        for inputs, _ in batches():
            network(part_of(inputs, rank, world_size)).pow(2).mean().backward()
        every.append([buffer.clone() for buffer in network.buffers()])
    return every


def train_joined(rank: int, world_size: int, divide_by_all: bool) -> list[torch.Tensor]:
    network = DistributedDataParallel(model(), bucket_cap_mb=0.0003)
    optimizer = sgd(network)
    with network.join(divide_by_initial_world_size=divide_by_all):
        for inputs, _ in batches(2 + 2 * rank):
            optimizer.zero_grad()
            network(part_of(inputs, rank, world_size)).pow(2).mean().backward()
            optimizer.step()
    return parameters_of(network)  # whoever ends last gives his to the others


@feature(SECTION, "join with uneven inputs, divide_by_initial_world_size")
def test_ddp_join(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    """Gradients are divided by the number of ranks, or of those that have not ended."""
    return [train_joined(rank, world_size, divide_by_all=divide) for divide in (True, False)]
