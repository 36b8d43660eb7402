"""Tensors without memory: a program that is only traced runs through its collectives."""

import torch
import torch.distributed as dist
from features import feature

SECTION = "Element types"


@feature(SECTION, "meta tensors: reductions")
def test_meta_tensors_are_reduced_by_doing_nothing(rank: int, world_size: int) -> list[str]:
    """In place and into another tensor, with and without waiting, in a group that goes on."""
    tensor = torch.ones(4, 6, device="meta")
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.all_reduce(tensor.t(), dist.ReduceOp.MAX, async_op=True),
        dist.reduce(tensor, 0, async_op=True),
        dist.reduce_scatter_single(tensor[:4], tensor.repeat(world_size, 1), async_op=True),
    ]
    for work in works:
        work.wait()
    dist.all_reduce(tensor)
    real = torch.ones(3)
    dist.all_reduce(real)
    return [str(tensor.device), str(tuple(tensor.shape)), str(real.tolist())]


@feature(SECTION, "meta tensors: moves")
def test_meta_tensors_are_moved_by_doing_nothing(rank: int, world_size: int) -> list[str]:
    """Collectives that move; peers need not even call."""
    tensor = torch.ones(world_size, 3, device="meta")
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty_like(tensor) for _ in range(world_size)], tensor)
    dist.all_gather_single(torch.empty(world_size**2, 3, device="meta"), tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    if rank == 0:
        dist.scatter(tensor, [tensor] * world_size, 0)
        dist.gather(tensor, [tensor] * world_size, 0)
        dist.isend(tensor, 1).wait()
    real = torch.full((2,), float(rank))
    dist.broadcast(real, 1)
    return [str(tensor.device), str(real.tolist())]
