"""What other libraries call of torch.distributed although it is not in its list."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Beside the group"


@feature(SECTION, "_broadcast_coalesced", world_size=3)
def test_broadcast_coalesced(rank: int, world_size: int) -> list[torch.Tensor]:
    """Tensors of several types, in buffers that hold some of them."""
    tensors = [torch.full((size,), 10.0 * rank + size) for size in (3, 0, 5, 40)]
    tensors += [torch.arange(4) + rank, torch.full((2, 2), rank, dtype=torch.bfloat16)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 100, 1)
    return tensors


@feature(SECTION, "a group's own methods, by the names of their arguments")
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
