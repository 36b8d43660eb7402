"""Sums of what each rank gives times its own factor."""

from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, InvalidArgumentError, premul_sum
from hccl_py.transport.types import IN_ONE_STEP

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
DTYPES += [getattr(torch, dtype.name.lower()) for dtype in sorted(IN_ONE_STEP)]

ranks = ranks_on("aab")


def given(rank: int, dtype: torch.dtype, count: int = 6) -> torch.Tensor:
    return (2.0 ** torch.arange(count)).to(dtype)


def wanted(dtype: torch.dtype) -> torch.Tensor:
    wide = torch.complex64 if dtype.is_complex else torch.float64
    return (given(0, dtype).to(wide) * (1 + 2 + 4)).to(dtype).to(wide)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_reduction_multiplies_first(ranks: ThreadRanks, dtype: torch.dtype) -> None:
    def use(comm: Communicator) -> list[torch.Tensor]:
        op = premul_sum(2.0**comm.rank)
        data, kept = given(comm.rank, dtype), given(comm.rank, dtype)
        outside, block = torch.empty_like(data), torch.empty(2, dtype=dtype)
        comm.all_reduce(data, op)
        comm.nonblocking.all_reduce(kept, op, output=outside).wait()
        comm.reduce_scatter(block, kept, op)
        blocks = torch.empty(2, dtype=dtype)
        comm.reduce_scatter(blocks, list(kept.split(2)), op)
        assert torch.equal(kept.view(torch.uint8), given(0, dtype).view(torch.uint8))
        comm.reduce(kept, 1, op)
        return [data, outside, block, blocks, kept]

    total = wanted(dtype)
    for rank, results in enumerate(ranks.run(use)):
        data, outside, block, blocks, kept = [one.to(total.dtype) for one in results]
        assert torch.equal(data, total)
        assert torch.equal(outside, total)
        assert torch.equal(block, total[2 * rank : 2 * rank + 2])
        assert torch.equal(blocks, block)
        unchanged = given(0, dtype).to(total.dtype)
        assert torch.equal(kept, total if rank == 1 else unchanged)


@pytest.mark.parametrize("data", [np.ones(3, int), np.ones(3, bool), np.zeros(3, "M8[s]")])
def test_other_elements_are_refused(ranks: ThreadRanks, data: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"type \w+.*, got premul_sum\(0\.5\)"):
        ranks.communicators[0].all_reduce(data, premul_sum(0.5))


@pytest.mark.parametrize("factor", [None, "2", 1j, np.ones(2)])
def test_factor_that_is_no_number_is_refused(factor: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="factor: expected a real number"):
        premul_sum(factor)
