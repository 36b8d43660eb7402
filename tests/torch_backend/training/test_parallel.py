"""Tensor parallel: styles of torch.distributed.tensor.parallel, with FSDP too."""

import pytest
import torch
from features import feature
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from training import model, parameters_of, sgd, train, trained_alone, whole

SECTION = "DTensor and tensor parallel"
STYLES = {"0": ColwiseParallel(), "2": RowwiseParallel()}


@feature(SECTION, "ColwiseParallel, RowwiseParallel", world_size=4, alone=trained_alone)
def test_columns_and_rows(rank: int, world_size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (world_size,))
    return train(parallelize_module(model(), mesh, STYLES), 0, 1)


class Block(nn.Module):
    """What a transformer's feed-forward is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.norm(inputs))))


def sequence() -> torch.Tensor:
    return torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.nightly("training")
@feature(SECTION, "SequenceParallel", world_size=4)
def test_sequence_parallel(rank: int, world_size: int) -> list[torch.Tensor]:
    """A norm on each rank's part of the sequence, between layers by columns and rows."""
    mesh = init_device_mesh("cpu", (world_size,))
    styles = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    }
    network = parallelize_module(Block(), mesh, styles)
    optimizer = sgd(network)
    for _ in range(2):
        optimizer.zero_grad()
        network(sequence()).pow(2).sum().backward()
        optimizer.step()
    return parameters_of(network)


@pytest.mark.nightly("training")
@feature(SECTION, "loss_parallel", world_size=4)
def test_loss_parallel(rank: int, world_size: int) -> list[torch.Tensor]:
    """A cross entropy of logits of which each rank has some classes."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world_size,))
    style = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    network = parallelize_module(nn.Linear(8, 12), mesh, style)
    with loss_parallel():
        loss = nn.functional.cross_entropy(network(sequence()[0]), torch.arange(8))
        loss.backward()
        return [whole(one) for one in (loss, *(weight.grad for weight in network.parameters()))]


@pytest.mark.nightly("training")
@feature(SECTION, "FSDP2 with tensor parallel, 2 x 2", world_size=4, alone=trained_alone)
def test_fully_sharded_and_parallel(rank: int, world_size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    network = parallelize_module(model(), mesh["tensor"], STYLES)
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh["data"])
    return train(network, mesh["data"].get_local_rank(), 2)
