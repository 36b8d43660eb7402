"""`hccl_py.capture()` around torch.distributed: what is recorded, and what is rejected."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import run_ranks

import hccl_py
from hccl_py import InvalidArgumentError


def replays_of_torch(rank: int, world_size: int) -> list[list[float]]:
    pair = dist.new_group([0, 1])
    data, block = torch.zeros(4), torch.zeros(2)
    parts = [torch.zeros(2) for _ in range(world_size)]
    passed, whole = torch.zeros(2), torch.zeros(4)
    with hccl_py.capture() as graph:
        dist.all_reduce(data)
        dist.reduce_scatter_single(block, data, group=pair)
        dist.all_gather(parts, block)
        work = dist.all_gather_single(whole, block, async_op=True)
        ops = [dist.P2POp(dist.isend, block, 1 - rank), dist.P2POp(dist.irecv, passed, 1 - rank)]
        for each in dist.batch_isend_irecv(ops):
            each.wait()
        work.wait()
        with dist._coalescing_manager(group=pair):
            dist.all_reduce(data[:2], group=pair)
            dist.all_reduce(data[2:], group=pair)
        dist.barrier()
    results = []
    for turn in range(2):
        data[:] = torch.arange(4.0) + rank + turn
        graph.replay()
        results += [one.tolist() for one in (data, block, passed, *parts, whole)]
    return results


def expected(rank: int) -> list[list[float]]:
    results = []
    for turn in range(2):
        total = 2 * torch.arange(4.0) + 1 + 2 * turn
        blocks = [(2 * total[:2]).tolist(), (2 * total[2:]).tolist()]
        results += [(2 * total).tolist(), blocks[rank], blocks[1 - rank], blocks[0], blocks[1]]
        results.append(blocks[0] + blocks[1])
    return results


def rejections_of_torch(rank: int, world_size: int) -> list[float]:
    data = torch.ones(4, 4)
    cases: list[Callable[[], object]] = [
        lambda: data.add_(1),
        lambda: dist.all_reduce(data.t()),
        lambda: dist.all_reduce(data[:, 0], async_op=True),
        lambda: functional.all_reduce(data, "sum", dist.group.WORLD),
        lambda: dist.all_gather_object([None] * world_size, rank),
    ]
    for call in cases:
        with pytest.raises(InvalidArgumentError, match="replay"), hccl_py.capture():
            call()
    with hccl_py.capture() as graph:
        dist.all_reduce(data[1])
        dist.all_reduce(data.view(-1)[:4])
    graph.replay()
    return data[:, 0].tolist()


def run_both(rank: int, world_size: int) -> tuple[list[list[float]], list[float]]:
    return replays_of_torch(rank, world_size), rejections_of_torch(rank, world_size)


def test_calls_of_process_groups_are_replayed_and_operations_rejected() -> None:
    results = run_ranks(run_both, 2, backend="hccl")
    for rank, (replayed, rejected) in enumerate(results):
        assert replayed == expected(rank)
        assert rejected == [4.0, 4.0, 1.0, 1.0]
