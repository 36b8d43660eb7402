"""torch.distributed.nn.functional: collectives that autograd goes through."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.nn.functional as collectives
from features import feature
from torch.distributed import ReduceOp

SECTION = "Functional collectives and torch.compile"
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
