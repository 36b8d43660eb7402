"""Meshes, DTensor and tensor parallel: placements, and operations on what is spread over ranks."""

import itertools

import pytest
import torch
import torch.distributed as dist
from features import feature
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
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
PLACEMENTS = (
    Replicate(),
    Shard(0),
    Shard(1),
    *(Partial(op) for op in ("sum", "avg", "max", "min", "product")),
)


def numbers(*shape: int) -> torch.Tensor:
    """Return small numbers, no two the same."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 8 - 1


def changed(tensor: DTensor, placements: list[Placement]) -> object:
    """Return what each rank has after a change, and the whole, or why torch rejects it."""
    try:
        after = tensor.redistribute(placements=placements)
        return after.to_local(), after.full_tensor()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.nightly("training")
@feature(SECTION, "redistribute: every placement to every other, uneven parts", world_size=3)
def test_every_change_of_placement(rank: int, world_size: int) -> list[object]:
    """Refused are the same changes."""
    mesh = init_device_mesh("cpu", (world_size,))
    results = []
    for before, after in itertools.product(PLACEMENTS, PLACEMENTS):
        if before.is_partial():  # what every rank has, to be put together
            tensor = DTensor.from_local(numbers(5, 4) * (rank + 1), mesh, [before])
        else:
            tensor = distribute_tensor(numbers(5, 4), mesh, [before])
        result = changed(tensor, [after])
        # To Partial is torch's own business; which of them it does depends on its version.
        assert not isinstance(result, str) or after.is_partial(), (before, after, result)
        results.append(result)
    return results


@feature(SECTION, "distribute_tensor, full_tensor", world_size=3)
def test_distribute_tensor(rank: int, world_size: int) -> list[torch.Tensor]:
    """Rank 0's values are those that all get."""
    mesh = init_device_mesh("cpu", (world_size,))
    results = []
    for placement in (Replicate(), Shard(0), Shard(1)):
        tensor = distribute_tensor(numbers(4, 5) * (rank + 1), mesh, [placement])
        results += [tensor.to_local(), tensor.full_tensor()]
    return results


@feature(SECTION, "distribute_module", world_size=3, alone=trained_alone)
def test_distribute_module(rank: int, world_size: int) -> list[torch.Tensor]:
    """A replicated model, trained on parts of a batch."""
    mesh = init_device_mesh("cpu", (world_size,))

    def spread(_: object, inputs: tuple[torch.Tensor, ...], mesh: object) -> DTensor:
        return distribute_tensor(inputs[0], mesh, [Shard(0)])

    def collect(_: object, outputs: DTensor, mesh: object) -> torch.Tensor:
        return outputs.full_tensor()

    return train(distribute_module(model(), mesh, input_fn=spread, output_fn=collect), 0, 1)


def sum_of_ranks(mesh: DeviceMesh) -> float:
    """Return the sum of the ranks that a mesh of one dimension has."""
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=mesh.get_group())
    return tensor.item()


@feature(SECTION, "init_device_mesh in two dimensions", world_size=4)
def test_mesh_of_two_dimensions(rank: int, world_size: int) -> list[object]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    columns, rows = mesh["replicate"], mesh["shard"]
    ranks = [dist.get_process_group_ranks(one.get_group()) for one in (columns, rows)]
    local = [mesh.get_local_rank(name) for name in ("replicate", "shard")]
    return [sum_of_ranks(columns), sum_of_ranks(rows), ranks, local, mesh.get_coordinate()]


@feature(SECTION, "init_device_mesh with backend_override", world_size=4)
def test_mesh_with_other_backends(rank: int, world_size: int) -> list[object]:
    """Some dimensions on gloo, some on hccl."""
    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("a", "b"), backend_override={"a": "gloo", "b": "hccl"}
    )
    backends = [dist.get_backend(mesh[name].get_group()) for name in ("a", "b")]
    return [sum_of_ranks(mesh["a"]), sum_of_ranks(mesh["b"]), backends]


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
