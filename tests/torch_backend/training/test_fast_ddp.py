"""fast_ddp: the gradients of one process on whole batches, in one buffer, with one all_reduce."""

import copy
import gc
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import batches, model, part_of, sgd, train, trained_alone

import hccl_py
from hccl_py.transport.arena import arena_of_this_process


def is_in_arena(tensor: Tensor) -> bool:
    return arena_of_this_process().holds(tensor.data_ptr(), tensor.numel() * tensor.itemsize)


def num_all_reduces() -> int:
    calls = dist.group.WORLD.statistics()["calls"]  # type: ignore[union-attr]
    return int(calls["all_reduce"]["calls"]) if "all_reduce" in calls else 0


def gradients_of(network: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in network.parameters()]


def assert_close(actual: list[Any], expected: list[Any]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def check_trains_alike(rank: int, world_size: int) -> None:
    network = model()
    keys, kind = list(network.state_dict()), type(network)
    if rank:
        for parameter in network.parameters():
            parameter.data.zero_()
    assert hccl_py.fast_ddp(network) is network
    assert (list(network.state_dict()), type(network)) == (keys, kind)
    before = num_all_reduces()
    assert_close(train(network, rank, world_size), trained_alone(1)[0])
    assert num_all_reduces() - before == 3, "one for each step"
    gradients = [one.grad for one in network.parameters() if one.grad is not None]
    assert len({one.untyped_storage().data_ptr() for one in gradients}) == 1
    assert all(map(is_in_arena, gradients)) == (os.environ.get("HCCL_ARENA_BYTES") != "0")
    for set_to_none in (False, True):
        optimizer, other = sgd(network), model()
        other.load_state_dict(network.state_dict())
        for inputs, _ in batches():
            optimizer.zero_grad(set_to_none=set_to_none)
            other.zero_grad()
            network(part_of(inputs, rank, world_size)).pow(2).mean().backward()
            other(inputs).pow(2).mean().backward()
            assert_close(gradients_of(network), gradients_of(other))
            now = [one.grad for one in network.parameters()]
            assert all(one is before for one, before in zip(now, gradients, strict=True))
            norms = [nn.utils.clip_grad_norm_(one.parameters(), 1e-3) for one in (network, other)]
            torch.testing.assert_close(*norms)
            optimizer.step()
            other.load_state_dict(network.state_dict())


@pytest.mark.parametrize("world_size", [1, 3])
def test_fast_ddp_trains_like_one_process(world_size: int) -> None:
    run_ranks(check_trains_alike, world_size, backend="hccl")


class Branches(nn.Module):
    """One of two layers, then a layer that is also the first one's; a frozen and a wide one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.same = self.layers[0]
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.wide = nn.Linear(8, 8).double()
        self.image = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        hidden = self.frozen(self.layers[branch](inputs))
        shown = self.image(hidden.new_ones(1, 2, 3, 3)).sum()
        return self.wide(self.same(hidden).double() if branch else hidden.double()) + shown


def check_branches(rank: int, world_size: int) -> None:
    """On each rank another layer, then on all ranks the second, then the first on all."""
    network, alone = hccl_py.fast_ddp(Branches()), Branches()
    optimizer, optimizer_alone = sgd(network), sgd(alone)
    chosen: list[Callable[[int], int]] = [lambda part: part, lambda part: 1, lambda part: 0]
    for (inputs, _), branch in zip(batches(), chosen, strict=True):
        optimizer.zero_grad()
        optimizer_alone.zero_grad()
        network(part_of(inputs, rank, world_size), branch(rank)).pow(2).mean().backward()
        losses = [
            alone(part_of(inputs, part, world_size), branch(part)).pow(2).mean()
            for part in range(world_size)
        ]
        torch.stack(losses).mean().backward()
        assert_close(gradients_of(network), gradients_of(alone))
        optimizer.step()
        optimizer_alone.step()
    assert network.layers[1].weight.grad is None, "no rank used it in the last step"
    assert network.image.weight.grad is not None
    assert network.image.weight.grad.stride() == network.image.weight.stride()
    network.frozen.requires_grad_(True)
    with pytest.raises(hccl_py.InvalidArgumentError, match="frozen.weight to stay frozen"):
        network(part_of(inputs, rank, world_size), 0).sum().backward()


def check_accumulation(rank: int, world_size: int) -> None:
    network, alone = hccl_py.fast_ddp(model()), model()
    parts = [part_of(inputs, rank, world_size) for inputs, _ in batches()]

    def fail(grad: Tensor) -> Tensor:
        raise ZeroDivisionError

    def loss(inputs: Tensor) -> Tensor:
        return network(inputs).pow(2).mean()  # type: ignore[no-any-return]

    network(parts[0])  # a forward pass alone changes nothing
    before = num_all_reduces()
    with network.no_sync():
        loss(parts[0]).backward()
    assert num_all_reduces() == before
    loss(parts[1]).backward()
    assert num_all_reduces() == before + 1
    kept = loss(parts[2])
    kept.backward(retain_graph=True)
    kept.backward()
    weights = (1, 1, 2)
    for (inputs, _), weight in zip(batches(), weights, strict=True):
        (weight * alone(inputs).pow(2).mean()).backward()
    assert_close(gradients_of(network), gradients_of(alone))
    # A backward pass that raises half-way leaves nothing behind.
    hidden = network[0](parts[0])
    hidden.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        network[2](hidden).sum().backward()
    network.zero_grad()
    alone.zero_grad()
    # The inner backward passes of reentrant checkpoints average too.
    outputs = checkpoint(network, parts[0].requires_grad_(), use_reentrant=True)
    (outputs.pow(2).mean() + loss(parts[1])).backward()
    for inputs, _ in batches(2):
        alone(inputs).pow(2).mean().backward()
    assert_close(gradients_of(network), gradients_of(alone))
    # A gradient penalty needs a graph of gradients, which torch.autograd.grad makes.
    network.zero_grad()
    alone.zero_grad()
    for trained, inputs in ((network, parts[2]), (alone, list(batches())[2][0])):
        inputs = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(trained(inputs).sum(), inputs, create_graph=True)
        slope.pow(2).mean().backward()
    assert_close(gradients_of(network), gradients_of(alone))
    with pytest.raises(hccl_py.InvalidArgumentError, match="create_graph=True"):
        loss(parts[0]).backward(create_graph=True)


def check_copies(rank: int, world_size: int) -> None:
    network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    assert isinstance(network[1].running_mean, Tensor)
    network[1].running_mean.fill_(rank + 1)
    hccl_py.fast_ddp(network)
    assert float(network[1].running_mean[0]) == 1, "rank 0's"
    own = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
    for one in own:
        before = num_all_reduces()
        with one.no_sync():
            one(torch.ones(2, 8)).sum().backward()
        one(torch.ones(2, 8)).sum().backward()
        assert num_all_reduces() == before, "a copy is not averaged"
        hccl_py.fast_ddp(one)
        one(torch.ones(2, 8)).sum().backward()
        assert num_all_reduces() == before + 1
    hccl_py.fast_ddp(network, dist.new_group())  # takes the place of the first
    before = num_all_reduces()
    network(torch.ones(2, 8)).sum().backward()
    assert num_all_reduces() == before
    network.double()
    with pytest.raises(hccl_py.InvalidArgumentError, match="convert the model before fast_ddp"):
        network(torch.ones(2, 8).double()).sum().backward()
    assert arena_of_this_process().num_allocated() > 0
    del network, own, one
    gc.collect()
    assert arena_of_this_process().num_allocated() == 0


def check_wrong_input(rank: int, world_size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    others = dist.new_group([0])
    embedding = nn.Embedding(4, 2, sparse=True)
    shared = model()
    hccl_py.fast_ddp(shared[0])
    wrong: list[tuple[Any, Any, str]] = [
        ("model", None, "expected a torch.nn.Module, got str"),
        (DistributedDataParallel(model()), None, "pass model.module"),
        (nn.Flatten(), None, "expected parameters to train, got Flatten without any"),
        (nn.Linear(2, 2, device="meta"), None, r"weight: .* on meta; move the model with .cpu\(\)"),
        (nn.LazyLinear(2), None, "run a batch through the model first"),
        (shared, None, r"0.weight: .* fast_ddp has in another model"),
        (model(), gloo, "group of the backend hccl, got one of gloo"),
        (model(), 3, "group of the backend hccl, got 3"),
        (nn.Linear(2, 2 + rank), None, r"got weight \(float32 \(2, 2\) on cpu\) on rank 0 and"),
    ]
    for given, group, message in wrong:
        with pytest.raises(hccl_py.InvalidArgumentError, match=message):
            hccl_py.fast_ddp(given, group)
    if rank:
        with pytest.raises(hccl_py.InvalidArgumentError, match="no member"):
            hccl_py.fast_ddp(model(), others)
    hccl_py.fast_ddp(embedding)
    with pytest.raises(hccl_py.InvalidArgumentError, match="sparse=False"):
        embedding(torch.tensor([1])).sum().backward()
    assert_close(train(hccl_py.fast_ddp(model()), rank, world_size), trained_alone(1)[0])


@pytest.mark.parametrize(
    "check", [check_branches, check_accumulation, check_copies, check_wrong_input]
)
def test_fast_ddp_in_every_case(check: Callable[[int, int], None]) -> None:
    run_ranks(check, 2, backend="hccl")


def check_without_registered_memory(rank: int, world_size: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_trains_alike(rank, world_size)
    assert "gradients are in ordinary memory" in "".join(str(one.message) for one in caught)


def test_fast_ddp_without_registered_memory_warns_and_trains() -> None:
    env = {"HCCL_ARENA_BYTES": "0"}
    run_ranks(check_without_registered_memory, 2, backend="hccl", env=env)


def check_lost_rank(rank: int, world_size: int) -> None:
    network = hccl_py.fast_ddp(model())
    if rank == 1:
        network(torch.ones(1, 8)).sum().backward()
        os._exit(1)
    with pytest.raises(dist.DistBackendError) as caught:
        for _ in range(2):
            network(torch.ones(1, 8)).sum().backward()
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    dist.destroy_process_group()


def test_backward_names_the_rank_that_was_lost() -> None:
    run_ranks(check_lost_rank, 3, backend="hccl", victims=[1])


def test_fast_ddp_without_a_group_says_what_to_call() -> None:
    with pytest.raises(hccl_py.InvalidArgumentError, match=r'init_process_group\("hccl"\) first'):
        hccl_py.fast_ddp(model())
