"""Sparse tensors: summed, and as the gradients of embeddings."""

import torch
import torch.distributed as dist
from features import feature
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHAPE = (5, 4, 2)


def sparse(
    rank: int, dtype: torch.dtype = torch.float32, num_values: int | None = None
) -> torch.Tensor:
    """Return a tensor with indices of this rank's own, one of them twice; rank 1 has most."""
    random = torch.Generator().manual_seed(rank)
    count = 3 + 2 * rank if num_values is None else num_values
    indices = torch.stack([torch.randint(0, side, (count,), generator=random) for side in SHAPE])
    indices[:, 1:2] = indices[:, :1]
    values = torch.randint(1, 9, (count,), generator=random).to(dtype)
    return torch.sparse_coo_tensor(indices, values, SHAPE, check_invariants=True)


def averages(world_size: int) -> list[torch.Tensor]:
    total = sum(sparse(rank, torch.int64).to_dense() for rank in range(world_size))
    return [torch.div(total, world_size).to(torch.int64)] * world_size


@feature("Reductions", "all_reduce of sparse tensors")
def test_all_reduce_sparse(rank: int, world_size: int) -> torch.Tensor:
    """In place; the tensor comes out coalesced, with more values than it had."""
    tensor = sparse(rank)
    dist.all_reduce(tensor)
    assert tensor.is_coalesced()
    return tensor.to_dense()


@feature("Reductions", "all_reduce of sparse tensors, async_op", world_size=3)
def test_all_reduce_sparse_async(rank: int, world_size: int) -> torch.Tensor:
    """Two in flight, and a dense one behind them."""
    tensors, dense = [sparse(rank), sparse(rank)], torch.ones(1000)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works.append(dist.all_reduce(dense, async_op=True))
    for work in reversed(works):
        work.wait()
    assert torch.equal(tensors[0].to_dense(), tensors[1].to_dense())
    assert dense.sum() == 1000 * world_size
    return tensors[0].to_dense()


@feature("Reductions", "all_reduce AVG of sparse integers", alone=averages)
def test_all_reduce_sparse_average_of_integers(rank: int, world_size: int) -> torch.Tensor:
    tensor = sparse(rank, torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor.to_dense()


@feature("Reductions", "all_reduce of sparse tensors without values")
def test_all_reduce_sparse_empty(rank: int, world_size: int) -> list[torch.Tensor]:
    """On one rank, then on all."""
    one, none = (sparse(rank) if rank else empty()), empty()
    dist.all_reduce(one)
    dist.all_reduce(none)
    return [one.to_dense(), none.to_dense()]


def empty() -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.empty(3, 0, dtype=torch.int64), torch.empty(0), SHAPE, check_invariants=True
    )


def embedding() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))


def train(network: nn.Module, rank: int, world_size: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    words = torch.randint(0, 10, (4, 8), generator=torch.Generator().manual_seed(1))
    for step in words:
        optimizer.zero_grad()
        network(step.chunk(world_size)[rank]).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


@feature("DistributedDataParallel", "nn.Embedding(sparse=True)")
def test_ddp_sparse_embedding(rank: int, world_size: int) -> list[torch.Tensor]:
    network = DistributedDataParallel(embedding())
    parameters = train(network, rank, world_size)
    assert network.module[0].weight.grad.is_sparse
    return parameters
