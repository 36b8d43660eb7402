"""Moving tensors: what one rank has arrives on others as it is."""

from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Moving tensors"


@feature(SECTION, "broadcast", covers=("broadcast",), world_size=3)
def test_broadcast(rank: int, world_size: int) -> list[torch.Tensor]:
    """From each rank in turn; `src` counts in the world, `group_src` in the group."""
    results = []
    group = dist.new_group([2, 0, 1], sort_ranks=False)
    for root in range(world_size):
        tensor = torch.full((2, 3), float(rank))
        dist.broadcast(tensor, root)
        other = torch.full((5,), rank)
        dist.broadcast(other, group=group, group_src=root, async_op=True).wait()
        results += [tensor, other]
    return results


@feature(SECTION, "all_gather", covers=("all_gather",), world_size=3)
def test_all_gather(rank: int, world_size: int) -> list[torch.Tensor]:
    """Into a list of tensors, which may be views of one buffer."""
    separate = [torch.empty(2, 3) for _ in range(world_size)]
    dist.all_gather(separate, torch.full((2, 3), float(rank)))
    whole = torch.empty(world_size, 4, dtype=torch.int64)
    dist.all_gather(list(whole.unbind()), torch.arange(4) + rank, async_op=True).wait()
    scalars = [torch.empty(()) for _ in range(world_size)]
    dist.all_gather(scalars, torch.tensor(float(rank)))
    return [*separate, whole, *scalars]


@feature(
    SECTION,
    "all_gather into, and of, views with gaps",
)
def test_all_gather_of_views_with_gaps(rank: int, world_size: int) -> torch.Tensor:
    """A row of every second element becomes a column."""
    columns = torch.zeros(4, world_size)
    dist.all_gather(list(columns.unbind(1)), (torch.arange(8) // 2 * float(rank))[::2])
    return columns


def uneven_lists(world_size: int) -> list[list[list[float]]]:
    return [[[float(rank)] * rank for rank in range(world_size)]] * world_size


@feature(SECTION, "all_gather of different sizes", alone=uneven_lists, world_size=3)
def test_all_gather_of_uneven_lists(rank: int, world_size: int) -> list[list[float]]:
    """Every rank knows the sizes; rank 0 has nothing."""
    outputs = [torch.empty(r) for r in range(world_size)]
    dist.all_gather(outputs, torch.full((rank,), float(rank)))
    return [output.tolist() for output in outputs]


@feature(
    SECTION,
    "all_gather_single, all_gather_into_tensor, _all_gather_base",
    covers=("all_gather_single", "all_gather_into_tensor"),
)
def test_all_gather_single(rank: int, world_size: int) -> list[torch.Tensor]:
    """Into one tensor, concatenated."""
    results = []
    for function in (
        dist.all_gather_single,
        dist.all_gather_into_tensor,
        dist._all_gather_base,  # type: ignore[attr-defined]
    ):
        output = torch.empty(world_size * 2, 3)
        function(output, torch.arange(6.0).reshape(2, 3) + 10 * rank)
        results.append(output)
    whole = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_single(
        output_tensor=whole, input_tensor=torch.tensor([rank]), async_op=True
    ).wait()
    return [*results, whole]


@feature(
    SECTION,
    "all_gather_single, broadcast, send of negated views",
)
def test_moving_negated_views(rank: int, world_size: int) -> torch.Tensor:
    """torch writes down that values are to be negated, and does it only when asked."""
    negated = torch.complex(torch.ones(2), torch.tensor([2.0, 3.0]) * rank).conj().imag
    whole, root, buffer = torch.empty(4), torch.empty(2), torch.empty(2)
    dist.all_gather_single(whole, negated)
    dist.broadcast(negated if rank == 1 else root, 1)
    receive = dist.irecv(buffer, 1 - rank)
    dist.isend(negated, 1 - rank).wait()
    receive.wait()
    return torch.cat([whole, negated if rank == 1 else root, buffer])


@feature(SECTION, "gather", covers=("gather",), world_size=3)
def test_gather(rank: int, world_size: int) -> list[Any]:
    """On each rank in turn; the others pass no list."""
    results = []
    for root in range(world_size):
        outputs = [torch.empty(2, 2) for _ in range(world_size)] if rank == root else None
        dist.gather(torch.full((2, 2), float(rank)), outputs, dst=root)
        results.append(outputs or "the root's")
    whole = torch.zeros(world_size, 3)
    outputs = list(whole.unbind()) if rank == 1 else []
    dist.gather(torch.arange(3.0) + rank, outputs, group_dst=1, async_op=True).wait()
    return [*results, whole]


@feature(SECTION, "scatter", covers=("scatter",), world_size=3)
def test_scatter(rank: int, world_size: int) -> list[torch.Tensor]:
    """From each rank in turn, a list of tensors or of views."""
    results = []
    for root in range(world_size):
        output = torch.empty(2, 2)
        inputs = [torch.full((2, 2), 10.0 * root + r) for r in range(world_size)]
        dist.scatter(output, inputs if rank == root else None, src=root)
        results.append(output)
    output = torch.empty(4)
    inputs = list(torch.arange(12.0).view(3, 4)) if rank == 2 else []
    dist.scatter(output, inputs, group_src=2, async_op=True).wait()
    return [*results, output]


@feature(
    SECTION,
    "all_to_all of different sizes, some of them zero",
    covers=("all_to_all",),
    world_size=3,
    alone=lambda n: [[[10 * a + b] * (a * b) for a in range(n)] for b in range(n)],
)
def test_all_to_all_of_uneven_lists(rank: int, world_size: int) -> list[list[int]]:
    """Rank a sends a × b numbers to rank b."""
    inputs = [torch.full((rank * r,), 10 * rank + r) for r in range(world_size)]
    outputs = [torch.empty(r * rank, dtype=torch.int64) for r in range(world_size)]
    dist.all_to_all(outputs, inputs)
    return [output.tolist() for output in outputs]


@feature(SECTION, "all_to_all_single", covers=("all_to_all_single",), world_size=3)
def test_all_to_all_single(rank: int, world_size: int) -> list[torch.Tensor]:
    rows = torch.arange(world_size * 4.0).view(world_size * 2, 2) + 100 * rank
    output = torch.empty_like(rows)
    dist.all_to_all_single(output, rows)
    other = torch.empty(world_size, dtype=torch.int64)
    dist.all_to_all_single(other, torch.arange(world_size) + 10 * rank, async_op=True).wait()
    return [output, other]


@feature(SECTION, "barrier", covers=("barrier",), world_size=3)
def test_barrier(rank: int, world_size: int) -> list[str]:
    """What a rank wrote before it came is there when the others have passed."""
    store = dist.distributed_c10d._get_default_store()
    seen = []
    for turn, options in enumerate(({}, {"device_ids": [0]}, {"async_op": True})):
        store.set(f"turn {turn} of {rank}", "here")
        work = dist.barrier(**options)
        if work is not None:
            work.wait()
        seen += [store.get(f"turn {turn} of {r}").decode() for r in range(world_size)]
        dist.barrier()
    return seen
