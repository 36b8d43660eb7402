"""torch.compile: collectives within a compiled graph."""

import shutil
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from features import feature

SECTION = "Functional collectives and torch.compile"


def world() -> Any:
    return dist.group.WORLD


def compiled(function: Any) -> Any:
    """Compile into one graph, or fail."""
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@feature(SECTION, "dist.all_reduce, all_gather, ... within torch.compile")
def test_compiled_calls(rank: int, world_size: int) -> list[torch.Tensor]:
    """One graph of the functions that torch knows how to trace."""

    @compiled
    def step(tensor: torch.Tensor) -> list[torch.Tensor]:
        total = tensor * 2
        dist.all_reduce(total)
        largest = tensor + 1
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        whole = torch.empty(tensor.shape[0] * world_size, 3)
        dist.all_gather_into_tensor(whole, total)
        part = torch.empty(tensor.shape[0] // world_size, 3)
        dist.reduce_scatter_tensor(part, tensor)
        exchanged = torch.empty_like(tensor)
        dist.all_to_all_single(exchanged, tensor)
        lists = [torch.empty_like(part) for _ in range(world_size)]
        dist.all_gather(lists, part)
        return [total, largest, whole, part, exchanged, *lists]

    tensor = torch.arange(12.0).view(4, 3) * (rank + 1)
    return [result.clone() for result in (*step(tensor), *step(tensor + 1))]


@pytest.mark.nightly("training")
@feature(SECTION, "functional collectives within torch.compile")
def test_compiled_functional(rank: int, world_size: int) -> list[torch.Tensor]:
    @compiled
    def step(tensor: torch.Tensor) -> list[torch.Tensor]:
        group = world()
        total = functional.all_reduce(tensor.sin(), "sum", group)
        return [
            total.cos(),
            functional.broadcast(tensor, 1, group) + 1,
            functional.all_gather_single(tensor, 1, group) * 2,
            functional.reduce_scatter_single(total, "avg", 0, group) - 1,
            functional.all_to_all_single(tensor, None, None, group) + 0,
            *functional.all_reduce_coalesced([tensor, tensor + 1], "max", group),
            functional.permute_tensor(tensor.flatten(), [1, 0], group) + 0,
        ]

    return [result.clone() for result in step(torch.arange(8.0).view(4, 2) + rank)]


@pytest.mark.nightly("training")
@feature(SECTION, "gradients through compiled collectives")
def test_compiled_gradients(rank: int, world_size: int) -> list[torch.Tensor]:
    @compiled
    def loss(tensor: torch.Tensor) -> torch.Tensor:
        whole = functional.all_gather_single_autograd(tensor.exp(), 0, world())
        part = functional.reduce_scatter_single_autograd(whole, "sum", 0, world())
        return (part * part).sum()

    leaf = (torch.arange(6.0).view(2, 3) / 10 + rank).requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return [value.detach(), leaf.grad]


@pytest.mark.nightly("training")
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@feature(SECTION, "functional collectives compiled by Inductor")
def test_compiled_by_inductor(rank: int, world_size: int) -> list[torch.Tensor]:
    """Inductor reuses buffers, and makes collectives those in place where it can."""
    from torch._inductor import config  # seconds, which collecting the tests need not take

    # A pool of compiling processes would take longer to start than the two kernels to compile.
    config.compile_threads = 1

    @torch.compile(fullgraph=True)
    def step(tensor: torch.Tensor) -> list[torch.Tensor]:
        total = functional.all_reduce(tensor.sin() + 1, "sum", world())
        whole = functional.all_gather_single(total, 0, world())
        return [total.cos(), functional.reduce_scatter_single(whole, "sum", 0, world())]

    return [result.clone() for result in step(torch.arange(64.0) + rank)]
