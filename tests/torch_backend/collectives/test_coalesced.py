"""Several calls that travel as one, and what other libraries call beside torch's list."""

from datetime import timedelta
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


BESIDE = "Beside the group"


@feature(BESIDE, "_broadcast_coalesced", world_size=3)
def test_broadcast_coalesced(rank: int, world_size: int) -> list[torch.Tensor]:
    """Tensors of several types, in buffers that hold some of them."""
    tensors = [torch.full((size,), 10.0 * rank + size) for size in (3, 0, 5, 40)]
    tensors += [torch.arange(4) + rank, torch.full((2, 2), rank, dtype=torch.bfloat16)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 100, 1)
    return tensors


@feature(BESIDE, "a group's own methods, by the names of their arguments")
def test_methods_of_groups(rank: int, world_size: int) -> list[torch.Tensor]:
    """Torch's overloads have a name for a list of tensors, and another for a single one."""
    group: Any = dist.group.WORLD
    single, doubled = torch.full((2,), rank + 1.0), torch.arange(4.0) + rank
    tensors = [torch.full((2,), 10.0 * index + rank) for index in range(14)]
    parts = [torch.empty(2) for _ in range(8)]
    blocks = [torch.arange(2.0), torch.arange(2.0) + 5]
    root: dict[str, Any] = {"input_tensors": blocks if rank == 0 else [], "root": 0}
    at_root: list[Any] = [parts[4:6]] if rank == 0 else []
    works = [
        group.allreduce(tensor=tensors[0], op=dist.ReduceOp.MAX, timeout=timedelta(seconds=20)),
        group.broadcast(tensor=tensors[1], root=1),
        group.reduce(tensor=single, root=0, op=dist.ReduceOp.MAX),
        group.allgather(output_tensors=[parts[:2]], input_tensors=[tensors[2]]),
        group.allgather(output_tensors=parts[2:4], input_tensor=tensors[3]),
        group.gather(output_tensors=at_root, input_tensors=[tensors[4]]),
        group.scatter(output_tensor=tensors[5], **root),
        group.reduce_scatter(output_tensors=[tensors[6]], input_tensors=[blocks]),
        group.reduce_scatter(output=tensors[7], input=blocks, op=dist.ReduceOp.MAX),
        group._reduce_scatter_base(outputTensor=tensors[8], inputTensor=doubled),
        group.reduce_scatter_single(outputTensor=tensors[9], inputTensor=doubled),
        group.alltoall(output_tensors=parts[6:], input_tensors=blocks),
        group.allgather_coalesced(output_lists=[[tensors[10]], [tensors[11]]], input_list=[single]),
    ]
    for work in works:
        work.wait()
    transferred = tensors[12 + rank]
    if rank == 0:
        group.send(tensors=[transferred], dstRank=1, tag=4).wait()
    else:
        group.recv(tensors=[transferred], srcRank=0, tag=4).wait()
    # What `reduce` leaves on rank 1 is not defined, and rank 1 gives it to `allgather_coalesced`.
    return [*tensors[:10], tensors[10], transferred, *parts[:4], *parts[4 + 2 * (rank > 0) :]]
