"""fully_shard (FSDP2), and FullyShardedDataParallel, the older one (FSDP1)."""

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
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffloadPolicy,
    FSDPModule,
    FullStateDictConfig,
    FullyShardedDataParallel,
    LocalStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
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


def train_low(network: nn.Module, rank: int, world_size: int) -> None:
    optimizer = sgd(network)
    for inputs, _ in batches():
        optimizer.zero_grad()
        network(part_of(inputs, rank, world_size)).float().pow(2).mean().backward()
        optimizer.step()


@feature(SECTION, "MixedPrecisionPolicy: bfloat16 parameters, float32 gradients", tolerance=1e-2)
def test_fully_shard_mixed_precision(rank: int, world_size: int) -> list[torch.Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    network = sharded(mp_policy=policy)
    train_low(network, rank, world_size)
    return parameters_of(network)


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


LAYERS = ModuleWrapPolicy({nn.Linear})


def wrapped(**options: object) -> FullyShardedDataParallel:
    options = {"auto_wrap_policy": LAYERS, **options}
    return FullyShardedDataParallel(model(), device_id=torch.device("cpu"), **options)


def values_of(network: FullyShardedDataParallel) -> list[torch.Tensor]:
    """Return whole parameters, in the model's order."""
    full = StateDictType.FULL_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(network, full):
        return list(network.state_dict().values())


def trained(rank: int, world_size: int, **options: object) -> list[torch.Tensor]:
    network = wrapped(**options)
    train(network, rank, world_size)
    return values_of(network)


STRATEGIES: tuple[dict[str, object], ...] = (
    {},
    {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    {"sharding_strategy": ShardingStrategy.NO_SHARD},
    {"use_orig_params": True},
    {"use_orig_params": True, "forward_prefetch": True}
    | {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
)


@feature(
    SECTION,
    "FSDP1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, use_orig_params, prefetching",
    alone=lambda n: [[trained_alone(n)[0]] * len(STRATEGIES)] * n,
)
def test_fsdp1(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    return [trained(rank, world_size, **options) for options in STRATEGIES]


@pytest.mark.nightly("training")
@feature(SECTION, "FSDP1, HYBRID_SHARD, 2 x 2", world_size=4, alone=trained_alone)
def test_fsdp1_hybrid_shard(rank: int, world_size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    strategy = ShardingStrategy.HYBRID_SHARD
    return trained(rank, world_size, device_mesh=mesh, sharding_strategy=strategy)


@pytest.mark.nightly("training")
@feature(SECTION, "FSDP1, MixedPrecision", tolerance=1e-2)
def test_fsdp1_mixed_precision(rank: int, world_size: int) -> list[torch.Tensor]:
    low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    network = wrapped(mixed_precision=low)
    train_low(network, rank, world_size)
    return values_of(network)


@feature(SECTION, "FSDP1, full, sharded and local state_dict")
def test_fsdp1_state_dicts(rank: int, world_size: int) -> list[object]:
    """Each kind is saved, and loaded into a new model that then has the same values."""
    network = wrapped()
    train(network, rank, world_size)
    every = []
    for kind, settings in (
        (StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)),
        (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()),
        (StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig()),
    ):
        again = wrapped()
        for one in (network, again):
            FullyShardedDataParallel.set_state_dict_type(one, kind, settings)
        state = network.state_dict()
        again.load_state_dict(state)
        every.append((sorted(state), values_of(again)))
    assert all(map(torch.equal, values_of(network), every[0][1]))
    return every
