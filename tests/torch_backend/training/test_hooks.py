"""DDP's stock communication hooks: what a few steps of training give with each of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from features import feature
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel
from training import model, train, trained_alone

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED, VARIABLE

SECTION = "DistributedDataParallel"
BF16 = 1e-1
"""How much rounding every gradient may show after the steps."""


def over_buckets() -> DistributedDataParallel:
    return DistributedDataParallel(model(), bucket_cap_mb=0.0003)


HOOKS = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
    default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    dist.BuiltinCommHookType.ALLREDUCE,
    dist.BuiltinCommHookType.FP16_COMPRESS,
)


@feature(
    SECTION,
    "hooks: allreduce, fp16 and bf16 compression, their wrappers, both built-in ones",
    alone=lambda n: [[trained_alone(n)[0]] * len(HOOKS)] * n,
    tolerance=BF16,
)
def test_default_hooks(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    results = []
    for hook in HOOKS:
        network = over_buckets()
        if isinstance(hook, dist.BuiltinCommHookType):
            network._register_builtin_comm_hook(hook)
        else:
            network.register_comm_hook(None, hook)
        results.append(train(network, rank, world_size))
    for exact in (results[0], results[5]):
        assert all(map(torch.allclose, exact, trained_alone(world_size)[0]))
    return results


def with_power_sgd(
    rank: int, world_size: int, hook: Callable[..., Any], *, warm_start: bool = True
) -> list[torch.Tensor]:
    """Train with several buckets; with gloo the order of the callbacks' calls differs by rank.

    The matrices have full rank, so that the result is exact.
    """
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=16,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
        warm_start=warm_start,
    )
    network = DistributedDataParallel(model()) if dist.get_backend() == "gloo" else over_buckets()
    network.register_comm_hook(state, hook)
    return train(network, rank, world_size)


@feature(
    SECTION,
    "hook: PowerSGD, several buckets",
    alone=lambda n: [trained_alone(n)[0] * 2] * n,
    tolerance=1e-3,
)
def test_power_sgd_hook(rank: int, world_size: int) -> list[torch.Tensor]:
    """With and without warm start, with which each step makes the matrices anew."""
    hook = powerSGD_hook.powerSGD_hook
    cold = with_power_sgd(rank, world_size, hook, warm_start=False)
    return with_power_sgd(rank, world_size, hook) + cold


def over_a_backend(rank: int, world_size: int) -> None:
    expected = trained_alone(world_size)[0]
    trained = with_power_sgd(rank, world_size, powerSGD_hook.powerSGD_hook)
    torch.testing.assert_close(trained, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not IS_SUPPORTED, reason="torch 2.14 is the first with a Backend in Python")
def test_power_sgd_over_a_backend_of_torchs_group() -> None:
    """C++ wraps its works; the calls of callbacks of their futures must have an order still."""
    run_ranks(over_a_backend, 2, backend="hccl", env={VARIABLE: "1"})


# With plain SGD, to average parameters after each step is to average gradients.
@feature(SECTION, "hook: post_localSGD, with PeriodicModelAverager", alone=trained_alone)
def test_post_local_sgd_hook(rank: int, world_size: int) -> list[torch.Tensor]:
    """Each rank a subgroup of its own, so that the averager has something to do."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    subgroup, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=2)
    network = over_buckets()
    network.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=1, warmup_steps=0)
    return train(network, rank, world_size, after=averager.average_parameters)


@feature(SECTION, "a hook of the user's own, on a group of its own")
def test_own_hook(rank: int, world_size: int) -> list[float]:
    """The future of a collective, divided in a callback."""
    group = dist.new_group()

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), group=state, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / world_size)

    network = DistributedDataParallel(nn.Linear(3, 1, bias=False), process_group=group)
    network.register_comm_hook(group, hook)
    network(torch.full((1, 3), float(rank))).sum().backward()
    gradient = network.module.weight.grad
    return gradient.flatten().tolist()
