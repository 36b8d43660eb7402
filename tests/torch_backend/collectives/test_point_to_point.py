"""Messages from one rank to another."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from features import feature

SECTION = "Point to point"


@feature(SECTION, "send, recv", covers=("send", "recv"), world_size=3)
def test_send_and_recv(rank: int, world_size: int) -> list[object]:
    """Round the ring, and back in a group that counts its ranks from the other end."""
    group = dist.new_group([2, 1, 0], sort_ranks=False)
    results: list[object] = []
    for step in (1, -1):
        before, after = (rank - step) % world_size, (rank + step) % world_size
        source: dict[str, Any] = {"src": before}
        target: dict[str, Any] = {"dst": after}
        if step == -1:
            source = {"group": group, "group_src": world_size - 1 - before}
            target = {"group": group, "group_dst": world_size - 1 - after}
        mine, buffer = torch.full((2, 3), rank + 0.5 * step), torch.empty(2, 3)
        if rank == 0:
            dist.send(mine, **target)
        came_from = dist.recv(buffer, **source)
        if rank != 0:
            dist.send(mine, **target)
        results += [buffer, came_from]
    return results


@feature(SECTION, "isend, irecv", covers=("isend", "irecv"))
def test_isend_and_irecv(rank: int, world_size: int) -> list[torch.Tensor]:
    """Both ways at once, large and small and nothing."""
    peer = 1 - rank
    buffers = [torch.empty(size) for size in (1, 1_000_000, 0, 70_001)]
    works = []
    for tag, buffer in enumerate(buffers):
        message = torch.arange(buffer.numel(), dtype=torch.float32) + rank
        works.append(dist.isend(message, peer, tag=tag))
        works.append(dist.irecv(buffer, peer, tag=tag))
    for work in works:
        work.wait()
    return buffers


@feature(SECTION, "recv from any source", covers=("recv",), world_size=3)
def test_recv_from_any_source(rank: int, world_size: int) -> object:
    """The call says who it was, and each rank's messages keep their order."""
    if rank != 0:
        for i in range(3):
            dist.send(torch.tensor([10 * rank + i]), 0, tag=7)
        return "sent"
    received: dict[int, list[int]] = {1: [], 2: []}
    buffer = torch.empty(1, dtype=torch.int64)
    for _ in range(6):
        source = dist.recv(buffer, tag=7)
        received[source].append(buffer.item())
    return received


@feature(SECTION, "batch_isend_irecv", covers=("batch_isend_irecv",), world_size=3)
def test_batch_isend_irecv(rank: int, world_size: int) -> list[torch.Tensor]:
    """Round the ring in both directions; receives come first in the list."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    from_left, from_right = torch.empty(3), torch.empty(3)
    ops = [
        dist.P2POp(dist.irecv, from_left, left, tag=1),
        dist.P2POp(dist.irecv, from_right, right, tag=2),
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right, tag=1),
        dist.P2POp(dist.isend, torch.full((3,), -float(rank)), group_peer=left, tag=2),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [from_left, from_right]


@feature(SECTION, "messages of scalars, leaves and inference tensors")
def test_messages_of_what_torch_protects(rank: int, world_size: int) -> list[torch.Tensor]:
    peer = 1 - rank
    leaf = torch.zeros(3, requires_grad=True)
    with torch.inference_mode():
        inferred = torch.zeros(2)
    buffers = [leaf, inferred, torch.zeros(()), torch.zeros(2, 0)]
    works = [dist.irecv(buffer, peer, tag=tag) for tag, buffer in enumerate(buffers)]
    for tag, buffer in enumerate(buffers):
        message = torch.full(buffer.shape, rank + 1.0, requires_grad=True)
        works.append(dist.isend(message, peer, tag=tag))
    for work in works:
        work.wait()
    return [buffer.detach().clone() for buffer in buffers]


@feature(
    SECTION,
    "a message that is smaller than its buffer",
    alone=lambda n: [True, "a message of 12 bytes for a buffer of 20 bytes"],
    differs="writes part of the buffer and says nothing",
    note="an error, and the group goes on",
)
def test_message_of_another_size_is_an_error(rank: int, world_size: int) -> object:
    """Half a tensor would be worse than none."""
    if rank == 0:
        dist.send(torch.ones(3), 1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item() == world_size
    buffer = torch.zeros(5)
    try:
        dist.recv(buffer, 0)
    except RuntimeError as error:
        said = "a message of 12 bytes for a buffer of 20 bytes"
        assert "12 bytes" in str(error) and "20 bytes" in str(error), error
    else:
        said = f"{buffer.tolist()} arrived"
    dist.all_reduce(torch.ones(1))
    return said


@feature(SECTION, "a send to oneself, and ranks that do not exist, are rejected by torch")
def test_wrong_peers_are_refused(rank: int, world_size: int) -> list[str]:
    calls = {
        "send to oneself": lambda: dist.send(torch.ones(1), rank),
        "dst and group_dst": lambda: dist.send(torch.ones(1), dst=0, group_dst=0),
        "no destination": lambda: dist.isend(torch.ones(1)),
    }
    refused = []
    for name, call in calls.items():
        with pytest.raises(ValueError):
            call()
        refused.append(name)
    return refused
