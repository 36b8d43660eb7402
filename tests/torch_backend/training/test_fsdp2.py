"""fully_shard (FSDP2)."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from features import feature
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from training import batches, model, parameters_of, part_of, sgd, train, trained_alone

SECTION = "Fully sharded"


def sharded(**options: object) -> nn.Sequential:
    """Return the model, each layer sharded by itself."""
    network = model()
    options.setdefault("mesh", init_device_mesh("cpu", (dist.get_world_size(),)))
    for layer in (network[0], network[2], network):
        fully_shard(layer, **options)
    return network


@feature(SECTION, "fully_shard", world_size=3, alone=trained_alone)
def test_fully_shard(rank: int, world_size: int) -> list[torch.Tensor]:
    """Parameters that the ranks cannot share evenly too."""
    return train(sharded(), rank, world_size)


def train_low(network: nn.Module, rank: int, world_size: int) -> list[torch.Tensor]:
    optimizer = sgd(network)
    for inputs, _ in batches():
        optimizer.zero_grad()
        network(part_of(inputs, rank, world_size)).float().pow(2).mean().backward()
        optimizer.step()
    return parameters_of(network)


@feature(SECTION, "MixedPrecisionPolicy: bfloat16 parameters, float32 gradients", tolerance=1e-2)
def test_fully_shard_mixed_precision(rank: int, world_size: int) -> list[torch.Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train_low(sharded(mp_policy=policy), rank, world_size)


@pytest.mark.nightly("training")
@feature(SECTION, "HSDP: fully_shard on a mesh of 2 x 2", world_size=4, alone=trained_alone)
def test_fully_shard_hybrid(rank: int, world_size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return train(sharded(mesh=mesh), rank, world_size)


@pytest.mark.nightly("training")
@feature(SECTION, "reshard_after_forward: True, False, or to a number of ranks", world_size=4)
def test_fully_shard_reshard(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    return [train(sharded(reshard_after_forward=one), rank, world_size) for one in (True, False, 2)]


def each(network: nn.Module, call: Callable[[FSDPModule], None]) -> nn.Module:
    for module in network.modules():
        if isinstance(module, FSDPModule):
            call(module)
    return network


@pytest.mark.nightly("training")
@feature(
    SECTION,
    "CPUOffloadPolicy, shard_placement_fn, memory of the group, forced sums, compiled",
    alone=lambda n: [[trained_alone(n)[0]] * 5] * n,
    note="pin_memory=False where there is no accelerator; compiled by `aot_eager`",
)
def test_fully_shard_options(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    networks = [
        sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)),
        sharded(shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1)),
        each(sharded(), lambda one: one.set_allocate_memory_from_process_group_for_comm(True)),
        each(sharded(), lambda one: one.set_force_sum_reduction_for_comms(True)),
        sharded(),
    ]
    assert networks[1][0].weight.placements == (Shard(1),)
    for index in (0, 2):
        networks[-1][index].compile(backend="aot_eager")
    return [train(network, rank, world_size) for network in networks]


@feature(SECTION, "get_state_dict, set_model_state_dict, set_optimizer_state_dict", world_size=3)
def test_state_of_sharded_model_and_optimizer(rank: int, world_size: int) -> list[torch.Tensor]:
    """The whole state of rank 0 goes to new models, and training goes on as if nothing was."""
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    network = sharded()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    train(network, rank, world_size, optimizer=optimizer)
    states = get_state_dict(network, optimizer, options=full)
    assert bool(states[0]) == (rank == 0)  # cpu_offload: only there
    again = sharded()
    optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    load = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # Not set_state_dict: where the dictionary is empty, it takes the model for not wanted.
    set_model_state_dict(again, states[0], options=load)
    set_optimizer_state_dict(again, optimizer, states[1], options=load)
    assert all(map(torch.equal, parameters_of(again), parameters_of(network)))
    return train(again, rank, world_size, optimizer=optimizer)
