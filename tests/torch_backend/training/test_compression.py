"""DDP between two nodes with compressed gradients: as good as without, same bits on all ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import on_nodes
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py

STEPS, FEATURES = 8, 512  # two layers, each with a MiB of weights: DDP's first bucket holds one
COMPRESSIONS = ("none", "bf16", "int8")


def trained(rank: int, world_size: int, compression: str) -> tuple[list[float], Any]:
    """Return the losses of all steps, and the hook's state."""
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES)
    network = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    state = None
    if compression != "none":
        state = hccl_py.CompressionState(compression)
        network.register_comm_hook(state, hccl_py.compression_hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    random = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(16, FEATURES, generator=random)
        loss = nn.functional.mse_loss(network(inputs), inputs.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for parameter in network.parameters():
        both = [torch.empty_like(parameter) for _ in range(world_size)]
        dist.all_gather(both, parameter.detach())
        assert all(torch.equal(one, parameter) for one in both), "ranks hold different weights"
    return losses, state


def train_with_each(rank: int, world_size: int) -> list[list[float]]:
    results = []
    for compression in COMPRESSIONS:
        losses, state = trained(rank, world_size, compression)
        results.append(losses)
        if state is None:
            continue
        residuals = [feedback.residual for _, feedback in state.feedbacks.values()]
        assert len(residuals) > 1, "one bucket shows nothing"
        assert any(residual is not None and residual.any() for residual in residuals)
    group: Any = dist.group.WORLD
    counted = group.communicator._state.core.compression()
    assert counted[0] >= 2 * STEPS
    assert counted[1] > counted[2]
    return results


@pytest.mark.nightly("training")
def test_ddp_learns_as_well_with_compressed_gradients() -> None:
    for plain, bf16, int8 in run_ranks(train_with_each, 4, backend="hccl", env=on_nodes(2, 4)):
        assert plain[-1] < plain[0]
        assert bf16 == pytest.approx(plain, rel=2e-3)
        assert int8 == pytest.approx(plain, rel=2e-3)


def gradients_of_doubles(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(nn.Linear(20_000, 1).double())
    network.register_comm_hook(hccl_py.CompressionState("int8"), hccl_py.compression_hook)
    network(torch.full((1, 20_000), rank + 1 / 3, dtype=torch.double)).sum().backward()
    assert network.module.weight.grad is not None
    torch.testing.assert_close(
        network.module.weight.grad,
        torch.full((1, 20_000), (world_size - 1) / 2 + 1 / 3, dtype=torch.double),
    )


def test_hook_averages_what_it_cannot_compress() -> None:
    run_ranks(gradients_of_doubles, 2, backend="hccl", env=on_nodes(2, 2))


class TwoEnds(nn.Module):
    """A layer that only rank 0 uses, and last in the buffer parameters with small gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.rare = nn.Linear(1, 1)
        self.wide = nn.Linear(300, 100)

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        loss = self.wide(inputs).sum() * 1e-6
        return loss + 1e6 * self.rare(inputs[:1, :1]).sum() if rank == 0 else loss


def gradients_by_fast_ddp(rank: int, world_size: int) -> None:
    network = hccl_py.fast_ddp(TwoEnds())
    for _ in range(2):
        network.zero_grad()
        network(torch.ones(1, 300), rank).backward()
        rare, wide = network.rare.bias.grad, network.wide.bias.grad
        assert rare is not None
        assert wide is not None
        assert rare.item() == pytest.approx(1e6 / world_size, rel=0.02)
        torch.testing.assert_close(wide, torch.full((100,), 1e-6), rtol=0.02, atol=0)


def test_fast_ddp_compresses_gradients_apart_from_its_flags() -> None:
    """In one block with flags of 1 the small gradients beside them would become zero."""
    nodes = on_nodes(2, 4)
    env = {"HCCL_COMPRESSION": "int8"}
    run_ranks(gradients_by_fast_ddp, 4, backend="hccl", env=lambda rank: nodes(rank) | env)


def hook_on_a_gloo_group(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(nn.Linear(3, 1))
    network.register_comm_hook(hccl_py.CompressionState("int8"), hccl_py.compression_hook)
    with pytest.raises(Exception, match="expected an hccl group"):
        network(torch.ones(1, 3)).sum().backward()


def test_hook_refuses_the_group_of_another_backend() -> None:
    run_ranks(hook_on_a_gloo_group, 2, backend="gloo")
    with pytest.raises(hccl_py.InvalidArgumentError, match="expected bf16 or int8, got none"):
        hccl_py.CompressionState("none")
