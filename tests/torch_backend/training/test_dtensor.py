"""DTensor: every change of placement, and operations on what is spread over ranks."""

import itertools

import pytest
import torch
from features import feature
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from training import model, train, trained_alone

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
