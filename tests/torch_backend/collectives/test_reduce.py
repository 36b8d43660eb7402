"""Reductions: what all ranks have is put together."""

import numpy as np
import torch
import torch.distributed as dist
from features import feature

SECTION = "Reductions"
SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX
Values = list[list[float]]


@feature(SECTION, "all_reduce", covers=("all_reduce",))
def test_all_reduce(rank: int, world_size: int) -> list[torch.Tensor]:
    """Every operation on tensors of three dtypes, contiguous or not."""
    results = []
    for dtype in (torch.float32, torch.int64, torch.uint8):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            tensor = (torch.arange(12).reshape(3, 4).t() % 5 + rank).to(dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor)
    return results


def int_averages(world_size: int) -> list[list[int]]:
    values = np.stack([np.arange(-3, 4) * (rank + 1) for rank in range(world_size)])
    return [np.trunc(values.sum(0) / world_size).astype(int).tolist()] * world_size


@feature(SECTION, "all_reduce AVG of integers", alone=int_averages)
def test_all_reduce_average_of_integers(rank: int, world_size: int) -> list[int]:
    """The sum, divided towards zero."""
    tensor = torch.arange(-3, 4) * (rank + 1)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor.tolist()


def scaled_sums(world_size: int) -> list[Values]:
    ranks = np.arange(1, world_size + 1)
    return [[[0.5 * ranks.sum()] * 3, [2.0 * ranks.sum()] * 3]] * world_size


@feature(SECTION, "all_reduce of a pre-multiplied sum", alone=scaled_sums)
def test_all_reduce_of_scaled_values(rank: int, world_size: int) -> Values:
    """Each contribution times a factor: a number, or a tensor with one element."""
    results = []
    for factor in (0.5, torch.tensor([2.0])):
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))  # type: ignore[attr-defined]
        results.append(tensor.tolist())
    return results


@feature(SECTION, "all_reduce of complex numbers", covers=("supports_complex",))
def test_all_reduce_of_complex_numbers(rank: int, world_size: int) -> list[object]:
    results: list[object] = [dist.supports_complex(SUM), dist.supports_complex(MAX)]
    for dtype in (torch.complex64, torch.complex128):
        for op in (SUM, AVG):
            tensor = torch.tensor([1 + 2j, rank * 1j], dtype=dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor)
    return results


@feature(
    SECTION,
    "all_reduce of a negated view",
    alone=lambda n: [[-2.0 * n, 3.0 * sum(range(n))]] * n,
    differs="adds the values behind the view, without the sign",
)
def test_all_reduce_of_negated_views(rank: int, world_size: int) -> list[float]:
    """torch writes down that the values are to be negated, and does it only when asked."""
    imaginary = torch.tensor([1 + 2j, -3j * rank]).conj().imag
    assert imaginary.is_neg()
    dist.all_reduce(imaginary)
    return imaginary.tolist()


@feature(SECTION, "all_reduce of leaves, inference tensors, scalars and nothing")
def test_all_reduce_of_what_torch_protects(rank: int, world_size: int) -> list[object]:
    leaf = torch.full((3,), rank + 1.0, requires_grad=True)
    dist.all_reduce(leaf)
    parameter = torch.nn.Parameter(torch.full((2, 3), rank + 1.0))
    with torch.no_grad():
        dist.all_reduce(parameter)
    with torch.inference_mode():
        inferred = torch.full((3,), rank + 1.0)
        dist.all_reduce(inferred)
    dist.all_reduce(inferred)
    scalar, empty = torch.tensor(rank + 1.0), torch.empty(0, 4)
    dist.all_reduce(scalar)
    dist.all_reduce(empty)
    tensors = (leaf.detach(), parameter.detach(), inferred, scalar, empty)
    return [leaf.requires_grad, *(tensor.clone() for tensor in tensors)]


def with_sums(world_size: int) -> list[torch.Tensor]:
    wholes = [torch.arange(120.0) * (rank + 1) for rank in range(world_size)]
    total = torch.stack(wholes).sum(0)
    for whole in wholes:
        for chosen in (slice(3, 60, 10), slice(60, 120, 2)):
            whole[chosen] = total[chosen]
    return wholes


@feature(
    SECTION,
    "all_reduce of views with gaps",
    alone=with_sums,
    differs="reduces what lies in the gaps, and writes to it",
)
def test_all_reduce_of_views_with_gaps(rank: int, world_size: int) -> torch.Tensor:
    """A column, and every second element."""
    whole = torch.arange(120.0) * (rank + 1)
    dist.all_reduce(whole[:60].view(6, 10)[:, 3])
    dist.all_reduce(whole[60:120:2])
    return whole


@feature(SECTION, "reduce", covers=("reduce",), world_size=3)
def test_reduce(rank: int, world_size: int) -> list[object]:
    """To each rank in turn; `dst` counts in the world, `group_dst` in the group."""
    results: list[object] = []
    group = dist.new_group([2, 1, 0], sort_ranks=False)
    for root in range(world_size):
        for op in (SUM, MAX):
            tensor = torch.tensor([rank + 1, -rank, 5])
            dist.reduce(tensor, root, op)
            results.append(tensor if rank == root else "another's")
        average = torch.full((4,), rank + 1.0)
        dist.reduce(average, group=group, group_dst=root, op=SUM, async_op=True).wait()
        results.append(average if group.rank() == root else "another's")
    return results


@feature(SECTION, "reduce_scatter", covers=("reduce_scatter",), world_size=3)
def test_reduce_scatter(rank: int, world_size: int) -> list[torch.Tensor]:
    """A list of blocks, of which each rank gets the sum of its own."""
    results = []
    for op in (SUM, MAX):
        output = torch.empty(2, 3)
        blocks = [torch.full((2, 3), 10.0 * r + rank) for r in range(world_size)]
        dist.reduce_scatter(output, blocks, op)
        results.append(output)
    whole, output = torch.arange(18.0) * (rank + 1), torch.empty(6)
    dist.reduce_scatter(output, list(whole.chunk(world_size)), async_op=True).wait()
    return [*results, output]


@feature(
    SECTION,
    "reduce_scatter_single, _tensor, _base",
    covers=("reduce_scatter_single", "reduce_scatter_tensor"),
)
def test_reduce_scatter_single(rank: int, world_size: int) -> list[torch.Tensor]:
    """One tensor of blocks, concatenated."""
    results = []
    for function in (
        dist.reduce_scatter_single,
        dist.reduce_scatter_tensor,
        dist._reduce_scatter_base,  # type: ignore[attr-defined]
    ):
        output = torch.empty(3)
        function(output, torch.arange(world_size * 3.0) * (rank + 1))
        results.append(output)
    output = torch.empty(2, dtype=torch.int64)
    work = dist.reduce_scatter_single(
        output, torch.arange(4) + rank, op=MAX, group=dist.group.WORLD, async_op=True
    )
    work.wait()
    return [*results, output]
