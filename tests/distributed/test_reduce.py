"""Reductions: what all ranks have is put together."""

import numpy as np
import torch
import torch.distributed as dist
from features import feature

SECTION = "Reductions"


@feature(SECTION, "all_reduce", covers=("all_reduce",))
def test_all_reduce(rank: int, world_size: int) -> list[torch.Tensor]:
    """Every operation on tensors of three dtypes, contiguous or not."""
    results = []
    for dtype in (torch.float32, torch.int64, torch.uint8):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            tensor = (torch.arange(12).reshape(3, 4).t() % 5 + rank).to(dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor)
    return results


def int_averages(world_size: int) -> list[list[int]]:
    values = np.stack([np.arange(-3, 4) * (rank + 1) for rank in range(world_size)])
    return [np.trunc(values.sum(0) / world_size).astype(int).tolist()] * world_size


@feature(SECTION, "all_reduce AVG of integers", alone=int_averages)
def test_all_reduce_average_of_integers(rank: int, world_size: int) -> list[int]:
    """The sum, divided towards zero."""
    tensor = torch.arange(-3, 4) * (rank + 1)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor.tolist()
