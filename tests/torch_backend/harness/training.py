"""A small model, and what it comes to when several ranks or one process train it."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

BATCH = 12  # divisible by 2, 3 and 4
STEPS = 3


def model(width: int = 8) -> nn.Sequential:
    """Return the same model in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, width))


def batches(steps: int = STEPS, width: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and targets, the same in every process."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield (
            torch.randn(BATCH, width, generator=random),
            torch.randn(BATCH, width, generator=random),
        )


def part_of(batch: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Return a rank's share of a batch."""
    return batch[rank * BATCH // world_size : (rank + 1) * BATCH // world_size]


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that is used unless one is given."""
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


def train(
    network: nn.Module,
    rank: int,
    world_size: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[Iterator[nn.Parameter]], object] | None = None,
) -> list[torch.Tensor]:
    """Train on this rank's part of every batch and return the parameters; `after` each step."""
    optimizer = optimizer or sgd(network)
    for inputs, targets in batches():
        optimizer.zero_grad()
        outputs = network(part_of(inputs, rank, world_size))
        nn.functional.mse_loss(outputs, part_of(targets, rank, world_size)).backward()
        optimizer.step()
        if after is not None:
            after(network.parameters())
    return parameters_of(network)


def parameters_of(network: nn.Module) -> list[torch.Tensor]:
    """Return all values of a model, whole also where each rank has a part."""
    return [whole(parameter) for parameter in network.parameters()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor or a DTensor has, as a tensor."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def trained_alone(world_size: int) -> list[list[torch.Tensor]]:
    """Return what `train` should return on every rank."""
    return [train(model(), 0, 1)] * world_size
