"""Tensors on an accelerator: right values, in the order of the streams, without holding them up.

Every check makes the same calls with tensors in host memory and compares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerator import here, keep_busy, needs_accelerator
from ranks import run_ranks
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from hccl_py.torch_backend.staging.pool import IDLE_BYTES, POOL
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


def check_works(rank: int, world_size: int) -> None:
    device = here()
    for count in (SMALL, TILED):
        # On any thread, as often as anybody likes, and after it is over.
        tensor = torch.ones(count, device=device)
        keep_busy(BUSY_S)
        work = dist.all_reduce(tensor, async_op=True)
        seen: list[float] = []

        def look(work: dist.Work, tensor: Tensor, seen: list[float]) -> None:
            with torch.Stream(device):
                work.wait()
                seen.append(float(tensor.sum()))

        arguments = work, tensor, seen
        threads = [threading.Thread(target=look, args=arguments) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert work.wait() and work.wait()
        assert float(tensor.sum()) == 2 * count
        for thread in threads:
            thread.join()
        assert seen == [2.0 * count] * 3
        torch.accelerator.synchronize()
        assert work.is_completed() and work.is_success() and work.exception() is None
        # Callbacks find the results in place on their own streams, and may communicate.
        keep_busy(BUSY_S)
        tensor = torch.ones(count, device=device)
        future = dist.all_reduce(tensor, async_op=True).get_future()

        def again(done: torch.futures.Future[list[Tensor]]) -> list[Tensor]:
            (result,) = done.value()
            scaled = result * 3
            dist.all_reduce(scaled, async_op=True).get_future().wait()
            return [scaled]

        (scaled,) = future.then(again).wait()
        assert scaled.device == device
        assert bool((scaled == 12).all())
        # Nobody keeps the work, nor the input.
        tensor = torch.zeros(2 * count, device=device)
        dist.all_gather_single(tensor, torch.ones(count, device=device), async_op=True)
        deadline = time.monotonic() + 20
        while not bool((tensor == 1).all()):
            assert time.monotonic() < deadline
    assert POOL.idle_bytes <= IDLE_BYTES


def test_works_can_be_waited_for_anywhere_called_back_and_dropped() -> None:
    run_ranks(check_works, 2, backend="hccl")


def check_others(rank: int, world_size: int) -> None:
    device = here()
    # Objects travel by host memory, unless somebody names the device.
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": index} for index in range(world_size)]
    objects = [rank, "text"]
    dist.broadcast_object_list(objects, 1, device=device)
    assert objects == [1, "text"]
    # Coalesced, with and without the device.
    for manager in (_coalescing_manager(device=device, async_ops=True), _coalescing_manager()):
        first, second = (torch.ones(SMALL, device=device) for _ in range(2))
        with manager as coalesced:
            dist.all_reduce(first)
            dist.all_reduce(second)
        if coalesced.works:
            coalesced.wait()
        assert first.tolist() == second.tolist() == [2.0] * SMALL
    with _coalescing_manager(device=device, async_ops=True) as coalesced:
        works = [dist.broadcast(torch.ones(3, device=device), 0, async_op=True) for _ in range(3)]
    coalesced.wait()
    assert all(work.is_completed() for work in works)
    # Any sender, element types that are converted, and the mean of integers.
    theirs = torch.zeros(SMALL, device=device)
    requests = [dist.isend(torch.ones(SMALL, device=device), 1 - rank)]
    assert dist.recv(theirs) == 1 - rank
    requests[0].wait()
    assert theirs.sum().item() == SMALL
    for dtype in (torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn, torch.int64):
        host = values(SMALL, rank).abs().to(dtype)
        there = host.to(device)
        for tensor in (host, there):
            dist.group.WORLD.allreduce([tensor]).wait()  # torch's own view_as_real left out
        assert torch.equal(there.cpu().view(torch.uint8), host.view(torch.uint8)), dtype
    mean = torch.tensor([-3, 4], device=device) * (rank + 1)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [-4, 6]
    leaf = torch.nn.Parameter(torch.ones(3, device=device))
    dist.all_reduce(leaf)
    assert leaf.tolist() == [2.0] * 3
    # Functional collectives.
    total = torch.distributed._functional_collectives.all_reduce(theirs, "sum", dist.group.WORLD)
    assert total.sum().item() == 2 * SMALL
    parts = torch.distributed._functional_collectives.all_gather_tensor(theirs, 0, dist.group.WORLD)
    assert parts.shape == (2 * SMALL,)


def test_objects_coalesced_calls_element_types_and_functional_collectives() -> None:
    run_ranks(check_others, 2, backend="hccl")


def check_errors(rank: int, world_size: int) -> None:
    device = here()
    with pytest.raises(Exception, match="one device.*cpu|must have|elements"):
        dist.all_gather_single(
            torch.zeros(3, device=device), torch.zeros(2, device=device), async_op=True
        )
    # A message of another size fails alone, on a device too.
    if rank == 0:
        dist.send(torch.ones(3, device=device), 1)
    else:
        work = dist.irecv(torch.ones(5, device=device), 0)
        with pytest.raises(dist.DistBackendError, match="a message of 12 bytes"):
            work.wait()
        assert work.exception() is not None and not work.is_success()
    tensor = torch.ones(SMALL, device=device)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * SMALL
    # Ranks that disagree are told which call it was, whoever asks: the work or its future.
    count = SMALL + rank
    works = [dist.all_reduce(torch.ones(count, device=device), async_op=True) for _ in range(2)]
    with pytest.raises(dist.DistBackendError, match="all_reduce"):
        works[0].wait()
    with pytest.raises(RuntimeError, match="all_reduce"):
        works[1].get_future().wait()


def test_errors_name_the_call() -> None:
    run_ranks(check_errors, 2, backend="hccl")


def check_abort(rank: int, world_size: int) -> None:
    device = here()
    kept = POOL.idle_bytes
    if rank == 0:
        works = [dist.all_reduce(torch.ones(TILED, device=device), async_op=True) for _ in range(3)]
        works.append(dist.irecv(torch.ones(SMALL, device=device), 1))
        dist.group.WORLD.abort()
        for work in works:
            with pytest.raises(dist.DistBackendError, match="abort"):
                work.wait()
            assert work.is_completed() and not work.is_success()
        # What the engine may still have held is not handed out again.
        assert POOL.idle_bytes == kept
    else:
        with pytest.raises(dist.DistBackendError, match="abort|rank 0"):
            dist.recv(torch.ones(SMALL, device=device), 0)
    dist.destroy_process_group()


def test_abort_ends_what_is_in_flight() -> None:
    run_ranks(check_abort, 2, backend="hccl")


def train(device: torch.device, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> list[Tensor]:
    torch.manual_seed(1)
    inner = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1))
    model = wrap(inner.to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rank, n = dist.get_rank(), dist.get_world_size()
    for step in range(4):
        batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.zero_grad()
        mine = batch[rank::n] if model is not inner else batch
        model(mine).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in inner.parameters()]


def check_ddp(rank: int, world_size: int) -> None:
    alone = train(torch.device("cpu"), lambda model: model)
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        wrapped = train(
            here(),
            lambda model, options=options: torch.nn.parallel.DistributedDataParallel(
                model, **options
            ),
        )
        for mine, right in zip(wrapped, alone, strict=True):
            torch.testing.assert_close(mine, right)


def test_ddp_equals_training_in_one_process() -> None:
    run_ranks(check_ddp, 2, backend="hccl")
