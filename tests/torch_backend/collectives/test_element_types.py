"""Element types: all are moved, and what has a sum is reduced; meta tensors have no memory."""

import torch
import torch.distributed as dist
from features import feature

SECTION = "Element types"
ORDINARY = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
INTEGERS = torch.int16, torch.uint16, torch.uint32, torch.uint64
FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
)


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Six numbers that every type can hold."""
    numbers = (torch.arange(6.0) + 2 * rank) % 4
    if dtype.is_complex:
        return torch.complex(numbers, numbers - 1).to(dtype)
    return numbers.to(dtype)


def moved(rank: int, world_size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Move tensors in every way, and return their bytes where torch knows no comparison."""
    mine, peer = values(rank, dtype), 1 - rank
    results = {name: torch.empty_like(mine) for name in ("scatter", "exchange", "recv")}
    root = values(rank, dtype)
    dist.broadcast(root, 1)
    lists = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(lists, mine)
    whole = torch.empty(6 * world_size, dtype=dtype)
    dist.all_gather_single(whole, mine)
    at_root = [torch.empty_like(mine) for _ in range(world_size)]
    dist.gather(mine, at_root if rank == 0 else None, 0)
    parts = [values(rank + r, dtype) for r in range(world_size)]
    dist.scatter(results["scatter"], parts if rank == 0 else None, 0)
    dist.all_to_all_single(results["exchange"], mine)
    receive = dist.irecv(results["recv"], peer)
    dist.isend(mine, peer).wait()
    receive.wait()
    everything = [root, *lists, whole, *results.values(), *(at_root if rank == 0 else [])]
    return [tensor.view(torch.uint8) for tensor in everything]


def right_moves(*dtypes: torch.dtype) -> list[list[torch.Tensor]]:
    """What `moved` should return on 2 ranks."""
    results: list[list[torch.Tensor]] = [[], []]
    for rank in range(2):
        for dtype in dtypes:
            both = [values(0, dtype), values(1, dtype)]
            halves = [both[r].view(torch.uint8).chunk(2)[rank] for r in range(2)]
            bytes_of = [tensor.view(torch.uint8) for tensor in both]
            results[rank] += [bytes_of[1], *bytes_of, torch.cat(bytes_of)]
            results[rank] += [bytes_of[rank], torch.cat(halves), bytes_of[1 - rank]]
            results[rank] += bytes_of if rank == 0 else []
    return results


def moved_each(rank: int, world_size: int, dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    return [tensor for dtype in dtypes for tensor in moved(rank, world_size, dtype)]


@feature(SECTION, "moving floats, integers and bool")
def test_moving_ordinary_types(rank: int, world_size: int) -> list[torch.Tensor]:
    return moved_each(rank, world_size, ORDINARY)


@feature(SECTION, "moving float8", alone=lambda n: right_moves(*FLOAT8))
def test_moving_float8(rank: int, world_size: int) -> list[torch.Tensor]:
    """As bytes: nothing is rounded, and NaNs stay as they are."""
    return moved_each(rank, world_size, FLOAT8)


@feature(
    SECTION,
    "all_reduce, reduce_scatter of int16, uint16, uint32, uint64",
    alone=lambda n: [[[0, 3, 6, 9, 12]] * 2 * len(INTEGERS)] * n,
)
def test_reducing_other_integers(rank: int, world_size: int) -> list[list[int]]:
    results = []
    for dtype in INTEGERS:
        tensor = (torch.arange(5) * (rank + 1)).to(dtype)
        scattered = torch.empty_like(tensor)
        dist.reduce_scatter(scattered, [tensor.clone() for _ in range(world_size)])
        dist.all_reduce(tensor)
        results += [tensor.tolist(), scattered.tolist()]
    return results


def float8_sums(world_size: int) -> list[list[torch.Tensor]]:
    """Three times 1/8, 1/4, ... in float32, rounded once; and the mean of ranks."""
    results = []
    for dtype in FLOAT8:
        parts = torch.stack([float8_part(rank, dtype).float() for rank in range(world_size)])
        total = parts.sum(0).to(dtype)
        results += [total, parts.mean(0).to(dtype), parts.amax(0).to(dtype)]
    return [[tensor.float() for tensor in results]] * world_size


def float8_part(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0.125, 1.0, 1.125, -3.5, 0.0625]).mul(rank + 1).to(dtype)


@feature(
    SECTION,
    "all_reduce of float8",
    world_size=3,
    alone=float8_sums,
    tolerance=0,
    note="added in float32, rounded once",
)
def test_reducing_float8(rank: int, world_size: int) -> list[torch.Tensor]:
    results = []
    for dtype in FLOAT8:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            tensor = float8_part(rank, dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor.float())
    return results


@feature(SECTION, "meta tensors: reductions")
def test_meta_tensors_are_reduced_by_doing_nothing(rank: int, world_size: int) -> list[str]:
    """In place and into another tensor, with and without waiting, in a group that goes on."""
    tensor = torch.ones(4, 6, device="meta")
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.all_reduce(tensor.t(), dist.ReduceOp.MAX, async_op=True),
        dist.reduce(tensor, 0, async_op=True),
        dist.reduce_scatter_single(tensor[:4], tensor.repeat(world_size, 1), async_op=True),
    ]
    for work in works:
        work.wait()
    dist.all_reduce(tensor)
    real = torch.ones(3)
    dist.all_reduce(real)
    return [str(tensor.device), str(tuple(tensor.shape)), str(real.tolist())]


@feature(SECTION, "meta tensors: moves")
def test_meta_tensors_are_moved_by_doing_nothing(rank: int, world_size: int) -> list[str]:
    """Collectives that move; peers need not even call."""
    tensor = torch.ones(world_size, 3, device="meta")
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty_like(tensor) for _ in range(world_size)], tensor)
    dist.all_gather_single(torch.empty(world_size**2, 3, device="meta"), tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    if rank == 0:
        dist.scatter(tensor, [tensor] * world_size, 0)
        dist.gather(tensor, [tensor] * world_size, 0)
        dist.isend(tensor, 1).wait()
    real = torch.full((2,), float(rank))
    dist.broadcast(real, 1)
    return [str(tensor.device), str(real.tolist())]
