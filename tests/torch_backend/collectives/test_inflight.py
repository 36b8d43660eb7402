"""Collectives that only `wait_tensor` ever waits for."""

import gc

import torch
import torch.distributed as dist
from features import feature
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
    wait_tensor,
)

SECTION = "Functional collectives and torch.compile"


@feature(SECTION, "async calls waited for by wait_tensor, allow_inflight_collective_…")
def test_calls_in_flight_are_waited_for_by_their_tensors(rank: int, world_size: int) -> list[float]:
    """More of them than a group remembers, and nobody keeps their works."""
    with allow_inflight_collective_as_graph_input_ctx():
        tensors = [torch.full((5_000,), float(index + rank)) for index in range(600)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        gc.collect()
        return [float(wait_tensor(tensor).double().mean()) for tensor in tensors]


@feature(SECTION, "all_gather and all_to_all in flight, waited for by wait_tensor")
def test_outputs_in_flight_are_waited_for_by_their_tensors(
    rank: int, world_size: int
) -> list[torch.Tensor]:
    """The outputs are registered, strided ones too; inputs need not be."""
    results = []
    with allow_inflight_collective_as_graph_input_ctx():
        for size in (1, 3_000, 200_000):
            gathered = torch.zeros(world_size * size)
            dist.all_gather_single(gathered, torch.full((size,), 1.0 + rank), async_op=True)
            moved = torch.zeros(world_size * size)
            source = torch.arange(float(world_size * size)) + rank
            dist.all_to_all_single(moved, source, async_op=True)
            results += [wait_tensor(gathered).clone(), wait_tensor(moved).clone()]
    return results
