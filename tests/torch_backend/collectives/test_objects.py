"""Objects that pickle carries."""

from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Objects"
CPU = torch.device("cpu")


def thing(rank: int) -> dict[str, Any]:
    """Something whose size depends on the rank."""
    return {"rank": rank, "text": "ä" * 1000 * rank, "tensor": torch.arange(rank), "none": None}


@feature(SECTION, "all_gather_object", covers=("all_gather_object",), world_size=3)
def test_all_gather_object(rank: int, world_size: int) -> list[Any]:
    objects: list[Any] = [None] * world_size
    dist.all_gather_object(objects, thing(rank))
    pair = dist.new_group([0, 2])
    few: list[Any] = [None] * 2
    if rank != 1:
        dist.all_gather_object(few, (rank, dist.ReduceOp), group=pair)
    return [objects, [member and member[0] for member in few]]


@feature(SECTION, "gather_object", covers=("gather_object",), world_size=3)
def test_gather_object(rank: int, world_size: int) -> list[Any]:
    """On one rank, named by its number in the world and in the group."""
    objects: list[Any] | None = [None] * world_size if rank == 1 else None
    dist.gather_object(thing(rank), objects, dst=1)
    others: list[Any] | None = [None] * world_size if rank == 2 else None
    dist.gather_object(rank, others, group_dst=2)
    return [objects, others]


@feature(SECTION, "broadcast_object_list", covers=("broadcast_object_list",), world_size=3)
def test_broadcast_object_list(rank: int, world_size: int) -> list[Any]:
    objects = [thing(rank), rank, "x"]
    dist.broadcast_object_list(objects, src=2)
    others: list[Any] = [rank]
    dist.broadcast_object_list(others, group_src=1, device=CPU)
    return [objects, others]


@feature(SECTION, "scatter_object_list", covers=("scatter_object_list",), world_size=3)
def test_scatter_object_list(rank: int, world_size: int) -> list[Any]:
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [thing(r) for r in range(world_size)] if rank == 0 else None)
    other: list[Any] = [None]
    numbers = list(range(10, 10 + world_size))
    dist.scatter_object_list(other, numbers if rank == 1 else None, group_src=1)
    return [mine, other]


@feature(
    SECTION, "send_object_list, recv_object_list", covers=("send_object_list", "recv_object_list")
)
def test_send_and_recv_object_list(rank: int, world_size: int) -> list[Any]:
    if rank == 0:
        dist.send_object_list([thing(5), "x"], dst=1)
        dist.send_object_list([rank], group_dst=1, device=CPU)
        return ["sent"]
    objects: list[Any] = [None, None]
    source = dist.recv_object_list(objects, src=0)
    other: list[Any] = [None]
    dist.recv_object_list(other, group_src=0, device=CPU)
    return [source, objects, other]
