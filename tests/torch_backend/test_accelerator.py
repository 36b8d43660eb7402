"""Tensors on an accelerator: right values, in the order of the streams, without holding them up.

Every check makes the same calls with tensors in host memory and compares.
"""

from collections.abc import Callable
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


def empty(length: int) -> Tensor:
    return torch.full((length,), -1.0)


Case = Callable[[torch.device, bool], list[Tensor]]


def finish(work: Any) -> None:
    if work is not None:
        work.wait()


def cases(rank: int, n: int, count: int) -> dict[str, Case]:
    """Every collective: a function of where its tensors lie and whether it is asynchronous."""

    def case(call: Callable[..., Any], outputs: list[Any], inputs: list[Any], *rest: Any) -> Case:
        """Return the outputs of a call; each argument is a tensor, a list of them, or None."""

        def make(device: torch.device, late: bool) -> list[Tensor]:
            def there(argument: Any) -> Any:
                if isinstance(argument, list):
                    return [tensor.to(device, copy=True) for tensor in argument]
                return argument if argument is None else argument.to(device, copy=True)

            results, given = list(map(there, outputs)), list(map(there, inputs))
            finish(call(*results, *given, *rest, async_op=late))
            found = results or given
            return found[0] if isinstance(found[0], list) else found

        return make

    def gather(to: Any, mine: Tensor, *rest: Any, **options: Any) -> Any:
        return dist.gather(mine, to or None, *rest, **options)

    def strided(device: torch.device, late: bool) -> list[Tensor]:
        tensor = values(2 * count, rank).to(device)
        finish(dist.all_reduce(tensor[::2], async_op=late))
        return [tensor]

    def exchange(device: torch.device, late: bool) -> list[Tensor]:
        theirs = empty(count).to(device), empty(count).to(device)
        before, after = (rank - 1) % n, (rank + 1) % n
        works = [dist.irecv(theirs[1], before, tag=5), dist.irecv(theirs[0], before, tag=4)]
        works += [dist.isend(mine.to(device) + tag, after, tag=tag) for tag in (4, 5)]
        for work in works:
            finish(work)
        return list(theirs)

    mine, whole, block = values(count, rank), values(n * count, rank), empty(count)
    blocks = [empty(count) for _ in range(n)]
    scaled = [mine * index for index in range(n)]
    uneven = [values(count + rank + to, rank) for to in range(n)]
    uneven_blocks = [empty(count + rank + source) for source in range(n)]
    root = rank == 1
    return {
        "all_reduce": case(dist.all_reduce, [], [mine]),
        "reduce": case(dist.reduce, [], [mine], 1, dist.ReduceOp.MAX),
        "broadcast": case(dist.broadcast, [], [mine], n - 1),
        "all_gather": case(dist.all_gather, [blocks], [mine]),
        "all_gather_single": case(dist.all_gather_single, [empty(n * count)], [mine]),
        "reduce_scatter": case(dist.reduce_scatter, [block], [scaled]),
        "reduce_scatter_single": case(dist.reduce_scatter_single, [block], [whole]),
        "all_to_all": case(dist.all_to_all, [uneven_blocks], [uneven]),
        "all_to_all_single": case(dist.all_to_all_single, [empty(n * count)], [whole]),
        "gather": case(gather, [blocks if root else []], [mine], 1),
        "scatter": case(dist.scatter, [block], [scaled if root else None], 1),
        "strided": strided,
        "exchange": exchange,
    }


def check_collectives(rank: int, world_size: int) -> None:
    device = here()
    for count in (0, 1, SMALL, TILED):
        for name, case in cases(rank, world_size, count).items():
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
