"""FullyShardedDataParallel, the older one (FSDP1)."""

import pytest
import torch
from features import feature
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    FullyShardedDataParallel,
    LocalStateDictConfig,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from training import batches, model, part_of, sgd, train, trained_alone

SECTION = "Fully sharded"
LAYERS = ModuleWrapPolicy({nn.Linear})


def sharded(**options: object) -> FullyShardedDataParallel:
    options = {"auto_wrap_policy": LAYERS, **options}
    return FullyShardedDataParallel(model(), device_id=torch.device("cpu"), **options)


def values_of(network: FullyShardedDataParallel) -> list[torch.Tensor]:
    """Return whole parameters, in the model's order."""
    full = StateDictType.FULL_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(network, full):
        return list(network.state_dict().values())


def trained(rank: int, world_size: int, **options: object) -> list[torch.Tensor]:
    network = sharded(**options)
    train(network, rank, world_size)
    return values_of(network)


OPTIONS: tuple[dict[str, object], ...] = (
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
    alone=lambda n: [[trained_alone(n)[0]] * len(OPTIONS)] * n,
)
def test_fsdp1(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    return [trained(rank, world_size, **options) for options in OPTIONS]


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
    network = sharded(mixed_precision=low)
    optimizer = sgd(network)
    for inputs, _ in batches():
        optimizer.zero_grad()
        network(part_of(inputs, rank, world_size)).float().pow(2).mean().backward()
        optimizer.step()
    return values_of(network)


@feature(SECTION, "FSDP1, full, sharded and local state_dict")
def test_fsdp1_state_dicts(rank: int, world_size: int) -> list[object]:
    """Each kind is saved, and loaded into a new model that then has the same values."""
    network = sharded()
    train(network, rank, world_size)
    every = []
    for kind, settings in (
        (StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)),
        (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()),
        (StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig()),
    ):
        again = sharded()
        for one in (network, again):
            FullyShardedDataParallel.set_state_dict_type(one, kind, settings)
        state = network.state_dict()
        again.load_state_dict(state)
        every.append((sorted(state), values_of(again)))
    assert all(map(torch.equal, values_of(network), every[0][1]))
    return every
