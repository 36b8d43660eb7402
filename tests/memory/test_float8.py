"""8-bit floats: sums in 32 bits, one rounding, whatever the nodes and however large."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, ReduceOp
from hccl_py.transport.types import IN_ONE_STEP

DTYPES = [getattr(torch, dtype.name.lower()) for dtype in sorted(IN_ONE_STEP)]
OPS: dict[ReduceOp, Callable[[list[torch.Tensor]], Any]] = {
    # In rank order, as the engine adds: a sum of 32-bit floats depends on it.
    ReduceOp.SUM: sum,
    ReduceOp.AVG: lambda wide: sum(wide) / len(wide),
    ReduceOp.PRODUCT: lambda wide: torch.stack(wide).prod(0),
    ReduceOp.MIN: lambda wide: torch.stack(wide).amin(0),
    ReduceOp.MAX: lambda wide: torch.stack(wide).amax(0),
}

ranks = ranks_on("a", "aaa", "aabb")


def contribution(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Any numbers; few enough are large that some sums overflow, and some do not."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(count, generator=generator) * 100).to(dtype)


def expected(op: ReduceOp, world_size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    each = [contribution(rank, count, dtype) for rank in range(world_size)]
    if world_size == 1:
        return each[0].float()
    return OPS[op]([one.float() for one in each]).to(dtype).float()


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(torch.equal(got.float().nan_to_num(nan=1e9), wanted.nan_to_num(nan=1e9)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("count", [1, 1000, 70001])
def test_all_reduce_rounds_once_as_torch_does(
    ranks: ThreadRanks, dtype: torch.dtype, op: ReduceOp, count: int
) -> None:
    def reduce(comm: Communicator) -> torch.Tensor:
        data = contribution(comm.rank, count, dtype)
        comm.all_reduce(data, op)
        return data

    wanted = expected(op, ranks.world_size, count, dtype)
    results = ranks.run(reduce)
    assert all(same(result, wanted) for result in results)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce_and_reduce_scatter_round_once(ranks: ThreadRanks, dtype: torch.dtype) -> None:
    n, count = ranks.world_size, 120 * ranks.world_size

    def reduce(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        data = contribution(comm.rank, count, dtype)
        block = torch.empty(count // n, dtype=dtype)
        comm.reduce_scatter(block, data, ReduceOp.AVG)
        comm.reduce(data, n - 1, ReduceOp.AVG)
        return block, data

    wanted = expected(ReduceOp.AVG, n, count, dtype)
    results = ranks.run(reduce)
    assert same(torch.cat([block for block, _ in results]), wanted)
    assert same(results[n - 1][1], wanted)
