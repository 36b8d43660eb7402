"""Tensors on an accelerator: right values, in the order of the streams, without holding them up.

Every check makes the same calls with tensors in host memory and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from accelerator import here, keep_busy, needs_accelerator
from ranks import run_ranks
from torch import Tensor

from hccl_py.torch_backend.staging.tiles import TILE_BYTES

pytestmark = needs_accelerator

SMALL = 7
TILED = 3 * TILE_BYTES // 4 // 2 + 5
"""Elements of a block that 2 ranks cut into tiles, the last ones not equal."""
BUSY_S = 0.3


def values(count: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-50, 50, (count,), generator=generator).to(dtype)


Case = Callable[[torch.device, bool], list[Tensor]]


def finish(work: Any) -> None:
    if work is not None:
        work.wait()


def cases(rank: int, n: int, count: int) -> Iterator[tuple[str, Case]]:
    """Every collective: a function of where its tensors lie and whether it is asynchronous."""

    def fresh(device: torch.device, length: int = count) -> Tensor:
        return values(length, rank).to(device)

    def empty(device: torch.device, length: int) -> Tensor:
        return torch.full((length,), -1.0).to(device)

    def all_reduce(device: torch.device, late: bool) -> list[Tensor]:
        tensor = fresh(device)
        finish(dist.all_reduce(tensor, async_op=late))
        return [tensor]

    def reduce(device: torch.device, late: bool) -> list[Tensor]:
        tensor = fresh(device)
        finish(dist.reduce(tensor, 1, dist.ReduceOp.MAX, async_op=late))
        return [tensor]

    def broadcast(device: torch.device, late: bool) -> list[Tensor]:
        tensor = fresh(device)
        finish(dist.broadcast(tensor, n - 1, async_op=late))
        return [tensor]

    def all_gather(device: torch.device, late: bool) -> list[Tensor]:
        outputs = [empty(device, count) for _ in range(n)]
        finish(dist.all_gather(outputs, fresh(device), async_op=late))
        return outputs

    def all_gather_single(device: torch.device, late: bool) -> list[Tensor]:
        output = empty(device, n * count)
        finish(dist.all_gather_single(output, fresh(device), async_op=late))
        return [output]

    def reduce_scatter(device: torch.device, late: bool) -> list[Tensor]:
        output = empty(device, count)
        inputs = [fresh(device) * index for index in range(n)]
        finish(dist.reduce_scatter(output, inputs, async_op=late))
        return [output]

    def reduce_scatter_single(device: torch.device, late: bool) -> list[Tensor]:
        output = empty(device, count)
        finish(dist.reduce_scatter_single(output, fresh(device, n * count), async_op=late))
        return [output]

    def all_to_all(device: torch.device, late: bool) -> list[Tensor]:
        inputs = [fresh(device, count + rank + to) for to in range(n)]
        outputs = [empty(device, count + rank + source) for source in range(n)]
        finish(dist.all_to_all(outputs, inputs, async_op=late))
        return outputs

    def all_to_all_single(device: torch.device, late: bool) -> list[Tensor]:
        output = empty(device, n * count)
        finish(dist.all_to_all_single(output, fresh(device, n * count), async_op=late))
        return [output]

    def gather(device: torch.device, late: bool) -> list[Tensor]:
        outputs = [empty(device, count) for _ in range(n)] if rank == 1 else []
        finish(dist.gather(fresh(device), outputs or None, 1, async_op=late))
        return outputs

    def scatter(device: torch.device, late: bool) -> list[Tensor]:
        output = empty(device, count)
        inputs = [fresh(device) + index for index in range(n)] if rank == 1 else None
        finish(dist.scatter(output, inputs, 1, async_op=late))
        return [output]

    def strided(device: torch.device, late: bool) -> list[Tensor]:
        tensor = fresh(device, 2 * count)
        finish(dist.all_reduce(tensor[::2], async_op=late))
        return [tensor]

    def exchange(device: torch.device, late: bool) -> list[Tensor]:
        theirs = empty(device, count), empty(device, count)
        before, after = (rank - 1) % n, (rank + 1) % n
        works = [dist.irecv(theirs[1], before, tag=5), dist.irecv(theirs[0], before, tag=4)]
        works += [dist.isend(fresh(device) + tag, after, tag=tag) for tag in (4, 5)]
        for work in works:
            finish(work)
        return list(theirs)

    for case in (
        *(all_reduce, reduce, broadcast, all_gather, all_gather_single, reduce_scatter),
        *(reduce_scatter_single, all_to_all, all_to_all_single, gather, scatter, strided),
        *(exchange,),
    ):
        yield case.__name__, case


def check_collectives(rank: int, world_size: int) -> None:
    device = here()
    for count in (0, 1, SMALL, TILED):
        for name, case in cases(rank, world_size, count):
            expected = case(torch.device("cpu"), False)
            for late in (False, True):
                found = case(device, late)
                assert all(tensor.device == device for tensor in found), name
                for mine, right in zip(found, expected, strict=True):
                    assert torch.equal(mine.cpu(), right), (name, count, late)


def test_every_collective_equals_the_same_on_host_memory() -> None:
    run_ranks(check_collectives, 2, backend="hccl")


def check_streams(rank: int, world_size: int) -> None:
    device = here()
    side = torch.Stream(device)
    for count in (SMALL, TILED):
        for late in (False, True):
            # What the stream is still to compute is what is sent.
            tensor = torch.zeros(count, device=device)
            one = torch.ones(count, pin_memory=True)
            torch.accelerator.synchronize()
            with side:
                keep_busy(BUSY_S)
                tensor.copy_(one, non_blocking=True)
                finish(dist.all_reduce(tensor, async_op=late))
                assert bool((tensor == world_size).all()), (count, late)
            # What it is still to read is not overwritten before.
            old, zeros = torch.zeros(count, pin_memory=True), torch.zeros(count, device=device)
            with side:
                if rank == 1:
                    keep_busy(BUSY_S)
                    old.copy_(tensor, non_blocking=True)
                finish(dist.broadcast(tensor if rank == 1 else zeros, 0, async_op=late))
            torch.accelerator.synchronize()
            assert rank == 0 or bool((old == world_size).all()), (count, late)


def test_copies_are_ordered_with_the_current_stream() -> None:
    run_ranks(check_streams, 2, backend="hccl")


def check_host_goes_on(rank: int, world_size: int) -> None:
    device = here()
    tensor = torch.ones(SMALL, device=device)
    dist.all_reduce(tensor)  # whatever is done once
    torch.accelerator.synchronize()
    keep_busy(3 * BUSY_S)
    busy = torch.accelerator.current_stream().record_event()
    work = dist.all_reduce(tensor, async_op=True)
    assert not busy.query(), "the call has waited for the device"
    assert not work.is_completed()
    # A call on host memory comes after it, on every rank, although this one need not wait.
    host = torch.full((3,), float(rank))
    dist.all_reduce(host)
    assert host.tolist() == [1.0] * 3
    assert busy.query()
    work.wait()
    assert tensor.tolist() == [4.0] * SMALL
    # One rank's device is late, the other's is not; none of the calls may change places.
    works = []
    for index in range(6):
        if rank == index % 2:
            keep_busy(BUSY_S / 6)
        there, host = torch.full((index + 2,), 1.0, device=device), torch.full((index + 2,), 2.0)
        works.append((dist.all_reduce(there, async_op=True), there, 2.0))
        works.append((dist.all_reduce(host, async_op=index % 2 == 0), host, 4.0))
    for work, result, expected in works:
        finish(work)
        assert result.tolist() == [expected] * result.numel()


def test_host_goes_on_and_calls_keep_their_order() -> None:
    run_ranks(check_host_goes_on, 2, backend="hccl")
