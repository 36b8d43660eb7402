"""Functional collectives, old and new: their results are new tensors, and differentiable."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as collectives
from features import feature
from torch.distributed import ReduceOp

SECTION = "Functional collectives and torch.compile"


def world() -> Any:
    return dist.group.WORLD


def numbers(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape) * (rank + 1)


@feature(SECTION, "functional all_reduce")
def test_functional_all_reduce(rank: int, world_size: int) -> list[torch.Tensor]:
    """The input keeps its values; the group is a group, a list of ranks or a name."""
    tensor = numbers(rank, 2, 3)
    results = [
        functional.all_reduce(tensor, op, world()) + 0
        for op in ("sum", "avg", "min", "max", "product")
    ]
    results.append(functional.all_reduce(tensor, "SUM", list(range(world_size))) * 2)
    results.append(functional.all_reduce(tensor.t(), "sum", world().group_name) * 2)
    bits = torch.tensor([5 + rank])
    results += [functional.all_reduce(bits, op, world()) + 0 for op in ("band", "bor", "bxor")]
    return [*results, tensor]


@feature(SECTION, "functional broadcast, all_gather_single, all_gather_tensor", world_size=3)
def test_functional_gathers(rank: int, world_size: int) -> list[torch.Tensor]:
    tensor = numbers(rank, 2, 4)
    results = [functional.broadcast(tensor, src=2, group=world())]
    for function in (functional.all_gather_single, functional.all_gather_tensor):
        results += [function(tensor, gather_dim=dim, group=world()) for dim in (0, 1)]
    return [result + 0 for result in results]


@feature(SECTION, "functional forms in place, and into a given tensor")
def test_functional_in_place(rank: int, world_size: int) -> list[torch.Tensor]:
    ops, name = torch.ops._c10d_functional, world().group_name
    one, other, several = numbers(rank, 3), numbers(rank, 3), [numbers(rank, 2), numbers(rank, 1)]
    waits = [ops.all_reduce_(one, "sum", name), ops.broadcast_(other, 1, name)]
    waits += ops.all_reduce_coalesced_(several, "sum", name)
    gathered, scattered = torch.empty(3 * world_size), torch.empty(2)
    waits.append(ops.all_gather_into_tensor_out(numbers(rank, 3), world_size, name, out=gathered))
    for tensor in waits:
        ops.wait_tensor(tensor)
    dist.all_reduce(gathered)
    functional.reduce_scatter_tensor_inplace(scattered, numbers(rank, 4), "sum")
    functional.all_reduce_inplace(one)
    lists = functional.all_gather_inplace([torch.empty(3) for _ in range(world_size)], other)
    into, exchanged = torch.empty(3 * world_size), torch.empty(4)
    functional.all_gather_tensor_inplace(into, other)
    functional.all_to_all_inplace(exchanged, numbers(rank, 4))
    return [one, other, *several, gathered, scattered, *lists, into, exchanged]


def gradient(call: Any, tensor: torch.Tensor, rank: int) -> list[torch.Tensor]:
    """Return what `call` makes of `tensor`, and the gradient of a weighted sum of it."""
    leaf = tensor.clone().requires_grad_()
    result = call(leaf)
    weights = torch.arange(float(result.numel())).view(result.shape) + rank
    (result * weights).sum().backward()
    assert leaf.grad is not None
    return [result.detach() + 0, leaf.grad + 0]


@feature(SECTION, "gradients of functional collectives")
def test_functional_gradients(rank: int, world_size: int) -> list[torch.Tensor]:
    sizes = [rank + r + 1 for r in range(world_size)]
    calls = [
        lambda x: functional.all_reduce(x, "sum", world()),
        lambda x: functional.all_gather_single_autograd(x, 0, world()),
        lambda x: functional.all_gather_tensor_autograd(x, 1, world()),
        lambda x: functional.reduce_scatter_single_autograd(x, "sum", 0, world()),
        lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 1, world()),
        lambda x: functional.all_to_all_single_autograd(x, None, None, world()),
    ]
    results = [part for call in calls for part in gradient(call, numbers(rank, 4, 6), rank)]

    def uneven(tensor: torch.Tensor) -> Any:
        return functional.all_to_all_single_autograd(tensor, sizes, sizes, world())

    results += gradient(uneven, numbers(rank, sum(sizes), 2), rank)
    leaves = [numbers(rank, 2).requires_grad_(), numbers(rank, 4).requires_grad_()]
    for result in functional.all_reduce_coalesced(leaves, "sum", world()):
        (result * result).sum().backward()
    return [*results, *(leaf.grad + 0 for leaf in leaves if leaf.grad is not None)]


@feature(SECTION, "dist.* on the result of a functional collective that nobody waited for")
def test_calls_on_functional_results(rank: int, world_size: int) -> list[torch.Tensor]:
    """Each call waits for it as an operator would."""

    def pending() -> torch.Tensor:
        return functional.all_reduce(numbers(rank, 4) + rank, "sum", world())

    reduced, root = pending(), functional.all_gather_single(numbers(rank, 2), 0, world())
    dist.all_reduce(reduced)
    dist.broadcast(root, 1)
    whole, block, buffer = torch.empty(8), torch.empty(2), torch.empty(4)
    dist.all_gather_single(whole, pending())
    dist.reduce_scatter_single(block, pending(), async_op=True).wait()
    receive = dist.irecv(buffer, 1 - rank)
    dist.isend(pending(), 1 - rank).wait()
    receive.wait()
    return [reduced + 0, root + 0, whole, block, buffer]


Results = list[torch.Tensor]


def through(rank: int, call: Callable[[torch.Tensor], Any]) -> Results:
    """Return what `call` returns, and the gradient of a sum of it that each rank weighs."""
    leaf = (torch.arange(4.0) + 10 * rank).requires_grad_()
    with warnings.catch_warnings():
        # torch calls some of them deprecated, and they are used all the same.
        warnings.simplefilter("ignore", FutureWarning)
        result = call(leaf)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    weighted = [(output * (rank + i + 2)).sum() for i, output in enumerate(outputs)]
    torch.stack(weighted).sum().backward()
    assert leaf.grad is not None
    return [*(output.detach().clone() for output in outputs), leaf.grad]


@feature(SECTION, "nn.functional: all_reduce, broadcast, all_gather, reduce_scatter, all_to_all")
def test_nn_collectives(rank: int, world_size: int) -> list[Results]:
    def reduce_scatter(leaf: torch.Tensor) -> Any:
        return collectives.reduce_scatter(torch.empty(4), [leaf, leaf * 2])

    def all_to_all(leaf: torch.Tensor) -> Any:
        return collectives.all_to_all([torch.empty(4), torch.empty(4)], [leaf * 2, leaf * 3])

    calls: list[Callable[[torch.Tensor], Any]] = [
        collectives.all_reduce,
        lambda leaf: collectives.all_reduce(leaf * leaf, ReduceOp.SUM),
        lambda leaf: collectives.broadcast(leaf * 1, 1),
        collectives.all_gather,
        reduce_scatter,
        all_to_all,
    ]
    return [through(rank, call) for call in calls]


@feature(SECTION, "nn.functional: reduce, gather, scatter")
def test_nn_rooted_collectives(rank: int, world_size: int) -> list[Results]:
    """Only the root has what is reduced and gathered."""
    reduced = through(rank, lambda leaf: collectives.reduce(leaf * 1, 1))
    gathered = through(rank, lambda leaf: collectives.gather(leaf * 1, dst=1))
    scattered = through(rank, lambda leaf: collectives.scatter([leaf * 2, leaf * 3], src=0))
    return [scattered, *([reduced, gathered] if rank == 1 else [reduced[1:], gathered[-1:]])]


@feature(SECTION, "nn.functional.all_to_all_single")
def test_nn_all_to_all_single(rank: int, world_size: int) -> Results:
    """Even, and with split sizes."""
    even = through(rank, lambda leaf: collectives.all_to_all_single(torch.empty(4), leaf * 1))
    sizes = [1, 3] if rank == 0 else [3, 1]
    uneven = through(
        rank, lambda leaf: collectives.all_to_all_single(torch.empty(4), leaf * 1, sizes, sizes)
    )
    return even + uneven


@feature(SECTION, "nn.functional._all_gather_base, forward")
def test_nn_all_gather_base(rank: int, world_size: int) -> torch.Tensor:
    """Its backward knows only NCCL and XCCL, by name."""
    mine = torch.arange(4.0) + 10 * rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return collectives._all_gather_base(torch.empty(4 * world_size), mine)
