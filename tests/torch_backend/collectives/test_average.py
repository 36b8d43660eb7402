"""Averages whose sum leaves the range of their type, through every call of torch that takes one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py

N = 4
LARGE = {torch.float16: 60000.0, torch.bfloat16: 3e38, torch.float32: 3e38, torch.float64: 1e308}
AVG = dist.ReduceOp.AVG


def equal(got: torch.Tensor, value: float) -> None:
    expected = torch.full_like(got, value)
    rtol = 2 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, expected, rtol=rtol, atol=0)


def check_collectives(rank: int, _: int) -> None:
    for dtype, large in LARGE.items():
        for count in (4, 40_000):

            def full(length: int, dtype: Any = dtype, large: float = large) -> torch.Tensor:
                return torch.full((length,), large, dtype=dtype)

            data = full(count)
            dist.all_reduce(data, AVG)
            equal(data, large)
            rooted = full(count)
            dist.reduce(rooted, 1, AVG)
            if rank == 1:
                equal(rooted, large)
            block = full(count)
            dist.reduce_scatter_tensor(block, full(N * count), AVG)
            equal(block, large)
            dist.reduce_scatter(block, [full(count) for _ in range(N)], AVG)
            equal(block, large)
            premul = full(count)
            dist.all_reduce(premul, dist._make_nccl_premul_sum(1 / N))
            equal(premul, large)
            with dist._coalescing_manager():
                pair = [full(count), full(count)]
                for one in pair:
                    dist.all_reduce(one, AVG)
            for one in pair:
                equal(one, large)
            places = torch.tensor([[0, rank]])
            sparse = torch.sparse_coo_tensor(places, full(2) / 2, (9,), check_invariants=True)
            dist.all_reduce(sparse, AVG)
            # Rank 0 gives it twice.
            equal(sparse.coalesce().values()[:1], large / 8 * 5)
    pairs = torch.full((99,), complex(3e38, -3e38), dtype=torch.complex64)
    dist.all_reduce(pairs, AVG)
    torch.testing.assert_close(pairs, torch.full_like(pairs, complex(3e38, -3e38)))


class Linear(nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2000))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (self.weight * values).sum()


def check_gradients(rank: int, _: int) -> None:
    large = torch.full((2000,), 3e38)
    for wrap in (DistributedDataParallel, hccl_py.fast_ddp):
        network = Linear()
        wrap(network)(large).backward()
        assert network.weight.grad is not None
        equal(network.weight.grad, 3e38)


def check_all(rank: int, world_size: int) -> None:
    check_collectives(rank, world_size)
    check_gradients(rank, world_size)


def test_averages_of_large_numbers_are_finite() -> None:
    run_ranks(check_all, N, backend="hccl", env=lambda rank: {"HCCL_NODE_ID": str(rank // 2)})
