"""Averages whose sum leaves the range of their type, through every call of torch that takes one."""

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hccl_py

N = 4
LARGE = 3e38
AVG = dist.ReduceOp.AVG


def full(count: int) -> torch.Tensor:
    return torch.full((count,), LARGE)


def equal(got: torch.Tensor, value: float = LARGE) -> None:
    torch.testing.assert_close(got, torch.full_like(got, value), rtol=1e-6, atol=0)


def check_all(rank: int, _: int) -> None:
    data, premul, rooted, block, listed, pair = (full(4) for _ in range(6))
    dist.all_reduce(data, AVG)
    dist.all_reduce(premul, dist._make_nccl_premul_sum(1 / N))
    dist.reduce(rooted, 1, AVG)
    dist.reduce_scatter_tensor(block, full(4 * N), AVG)
    dist.reduce_scatter(listed, [full(4) for _ in range(N)], AVG)
    with dist._coalescing_manager():
        dist.all_reduce(pair[:1], AVG)
        dist.all_reduce(pair[1:], AVG)
    for got in (data, premul, block, listed, pair, *([rooted] if rank == 1 else [])):
        equal(got)
    places = torch.tensor([[0, rank]])
    sparse = torch.sparse_coo_tensor(places, full(2) / 2, (9,), check_invariants=True)
    dist.all_reduce(sparse, AVG)
    equal(sparse.coalesce().values()[:1], LARGE / 8 * 5)  # rank 0 gives it twice
    for wrap in (DistributedDataParallel, hccl_py.fast_ddp):
        network = nn.Linear(2000, 1, bias=False)
        wrap(network)(full(2000)).backward()
        assert network.weight.grad is not None
        equal(network.weight.grad)


def test_averages_of_large_numbers_are_finite() -> None:
    run_ranks(check_all, N, backend="hccl", env=lambda rank: {"HCCL_NODE_ID": str(rank // 2)})
