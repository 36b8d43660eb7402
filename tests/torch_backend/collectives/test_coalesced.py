"""Several calls that travel as one."""

from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Coalesced calls"
CPU = torch.device("cpu")
coalescing: Any = dist.distributed_c10d._coalescing_manager


def tensors(rank: int) -> list[torch.Tensor]:
    return [torch.arange(float(size)) + rank for size in (3, 0, 70_000, 1)]


@feature(SECTION, "all_reduce_coalesced", covers=("all_reduce_coalesced",))
def test_all_reduce_coalesced(rank: int, world_size: int) -> list[torch.Tensor]:
    """Waited for at once, and as a future."""
    now, later = tensors(rank), tensors(rank)
    dist.all_reduce_coalesced(now)
    future = dist.all_reduce_coalesced(later, dist.ReduceOp.MAX, async_op=True)
    future.wait()
    one = torch.tensor([rank + 1])
    dist.all_reduce_coalesced(one)
    return [*now, *later, one]


@feature(SECTION, "all_gather_coalesced", covers=("all_gather_coalesced",), world_size=3)
def test_all_gather_coalesced(rank: int, world_size: int) -> list[list[torch.Tensor]]:
    outputs = [[torch.empty_like(one) for one in tensors(rank)] for _ in range(world_size)]
    dist.all_gather_coalesced(outputs, tensors(rank), async_op=True).wait()
    return outputs


@feature(SECTION, "a group's all_gather_single_coalesced, allgather_into_tensor_coalesced")
def test_all_gather_single_coalesced(rank: int, world_size: int) -> list[torch.Tensor]:
    group = dist.group.WORLD
    results = []
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        inputs = [torch.full((2,), rank + 1.0), torch.arange(6.0).view(3, 2) - rank]
        outputs = [torch.empty(world_size * 2), torch.empty(world_size * 3, 2)]
        getattr(group, name)(outputs, inputs).wait()
        results += outputs
    return results


@feature(SECTION, "the coalescing manager, without a device")
def test_coalescing_manager(rank: int, world_size: int) -> list[torch.Tensor]:
    """torch makes one coalesced call of calls of one kind."""
    reduced, gathered = tensors(rank), [torch.empty(2 * world_size) for _ in range(2)]
    scattered = [torch.empty(2), torch.empty(2)]
    with coalescing():
        for tensor in reduced:
            dist.all_reduce(tensor)
    with coalescing():
        for tensor in gathered:
            dist.all_gather_into_tensor(tensor, torch.full((2,), rank + 1.0))
    with coalescing():
        for tensor in scattered:
            dist.reduce_scatter_tensor(tensor, torch.arange(4.0) + rank)
    return [*reduced, *gathered, *scattered]


def mixed(world_size: int) -> list[list[float]]:
    return [[1.0, 10.0 * 0 + rank, 10.0 + rank, 1.0 - rank] for rank in range(world_size)]


@feature(SECTION, "the coalescing manager around calls of several kinds", alone=mixed)
def test_coalescing_manager_of_mixed_calls(rank: int, world_size: int) -> list[float]:
    """broadcast, all_to_all_single, isend and irecv; one wait covers all of them."""
    one, exchanged, received = torch.tensor([float(rank)]), torch.empty(2), torch.empty(1)
    with coalescing(device=CPU, async_ops=True) as calls:
        dist.broadcast(one, 1, async_op=True)
        dist.all_to_all_single(exchanged, torch.arange(2.0) + 10 * rank, async_op=True)
        dist.isend(torch.tensor([float(rank)]), 1 - rank)
        dist.irecv(received, 1 - rank)
    calls.wait()
    return [one.item(), *exchanged.tolist(), received.item()]
