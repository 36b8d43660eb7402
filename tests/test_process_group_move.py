"""Moving data through torch.distributed: every element type and shape arrives as it was sent."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch_values import CASES, same, tensor_of, values


def contribution(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return tensor_of(values(rank, shape, dtype), dtype)


def check_broadcast(rank: int, world_size: int) -> None:
    for root in range(world_size):
        for dtype, shape in CASES:
            tensor = contribution(rank, shape, dtype)
            dist.broadcast(tensor, root)
            same(tensor, contribution(root, shape, dtype), (dtype, shape, root))
        strided = contribution(rank, (6, 4), torch.float32)
        kept = strided.clone()
        dist.broadcast(strided.t()[1:3, ::2], root)
        kept.t()[1:3, ::2] = contribution(root, (6, 4), torch.float32).t()[1:3, ::2]
        same(strided, kept, "strided")
        # An expanded tensor can be sent, though it could not be written to.
        one = torch.full((1,), rank + 1.0)
        tensor = one.expand(3) if rank == root else torch.empty(3)
        dist.broadcast(tensor, root)
        assert tensor.tolist() == [root + 1.0] * 3


def check_all_gather(rank: int, world_size: int) -> None:
    for dtype, shape in CASES:
        mine = contribution(rank, shape, dtype)
        all_of_them = [contribution(r, shape, dtype) for r in range(world_size)]
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(world_size)]
        dist.all_gather(outputs, mine)
        for output, expected in zip(outputs, all_of_them, strict=True):
            same(output, expected, ("list", dtype, shape))
        stacked = torch.empty((world_size, *shape), dtype=dtype)
        dist.all_gather_single(stacked, mine)
        same(stacked, torch.stack(all_of_them), ("stack", dtype, shape))
        if shape:
            joined = torch.empty((world_size * shape[0], *shape[1:]), dtype=dtype)
            dist.all_gather_into_tensor(joined, mine)
            same(joined, torch.cat(all_of_them), ("concat", dtype, shape))


def check_all_gather_memory(rank: int, world_size: int) -> None:
    flat = torch.full((5 * world_size + 2,), -1.0)
    views = list(flat[1:-1].chunk(world_size))
    dist.all_gather(views, torch.full((5,), float(rank)))
    inside = torch.arange(world_size).repeat_interleave(5).float()
    same(flat, torch.cat([torch.tensor([-1.0]), inside, torch.tensor([-1.0])]), "views")
    in_place = torch.zeros(4 * world_size)
    in_place[4 * rank : 4 * rank + 4] = rank + 1.0
    dist.all_gather_single(in_place, in_place[4 * rank : 4 * rank + 4])
    same(in_place, torch.arange(1, world_size + 1).repeat_interleave(4).float(), "in place")
    strided = torch.zeros(2 * world_size, 2)
    work = dist.all_gather_single(
        strided[:, 0], torch.full((2, 3), float(rank))[:, 1], async_op=True
    )
    work.wait()
    same(strided[:, 0], torch.arange(world_size).repeat_interleave(2).float(), "strided")
    assert (strided[:, 1] == 0).all()
    uneven = [torch.empty(r) for r in range(world_size)]
    dist.group.WORLD.allgather([uneven], [torch.full((rank,), float(rank))]).wait()
    assert [t.tolist() for t in uneven] == [[float(r)] * r for r in range(world_size)]


def check_gather_scatter(rank: int, world_size: int) -> None:
    for root in range(world_size):
        for dtype, shape in CASES:
            mine = contribution(rank, shape, dtype)
            blocks = [contribution(r, shape, dtype) for r in range(world_size)]
            outputs = None
            if rank == root:
                outputs = [torch.empty(shape, dtype=dtype) for _ in range(world_size)]
            dist.gather(mine, outputs, root)
            for output, block in zip(outputs or [], blocks, strict=False):
                same(output, block, ("gather", dtype, shape, root))
            output = torch.empty(shape, dtype=dtype)
            dist.scatter(output, blocks if rank == root else None, root)
            same(output, mine, ("scatter", dtype, shape, root))


def check_all_to_all(rank: int, world_size: int) -> None:
    for dtype, shape in CASES:
        sent = [contribution(10 * rank + to, shape, dtype) for to in range(world_size)]
        expected = [contribution(10 * r + rank, shape, dtype) for r in range(world_size)]
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(world_size)]
        dist.all_to_all(outputs, sent)
        for output, block in zip(outputs, expected, strict=True):
            same(output, block, ("list", dtype, shape))
        single = torch.empty((world_size, *shape), dtype=dtype)
        dist.all_to_all_single(single, torch.stack(sent))
        same(single, torch.stack(expected), ("single", dtype, shape))
    # Rank a sends a + b rows to b.
    send_sizes = [rank + to for to in range(world_size)]
    rows = torch.full((sum(send_sizes), 2), float(rank))
    output = torch.full((sum(send_sizes), 2), -1.0)
    dist.all_to_all_single(output, rows, send_sizes, send_sizes)
    arrived = [torch.full((r + rank, 2), float(r)) for r in range(world_size)]
    same(output, torch.cat(arrived), "uneven rows")
    lists = [torch.empty(r + rank, 2) for r in range(world_size)]
    dist.all_to_all(lists, list(rows.split(send_sizes)))
    for got, block in zip(lists, arrived, strict=True):
        same(got, block, "uneven list")
    wide = torch.zeros(2, 2 * world_size)
    dist.all_to_all_single(wide.t(), torch.arange(4.0 * world_size).reshape(-1, 2))
    same(wide.t(), torch.arange(4.0 * rank, 4.0 * rank + 4).reshape(2, 2).repeat(world_size, 1))


def check_moves(rank: int, world_size: int) -> None:
    check_broadcast(rank, world_size)
    check_all_gather(rank, world_size)
    check_all_gather_memory(rank, world_size)
    check_gather_scatter(rank, world_size)
    check_all_to_all(rank, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_moved_values_equal_those_sent(world_size: int) -> None:
    run_ranks(check_moves, world_size, backend="hccl")


def node_of(rank: int) -> dict[str, str]:
    return {"HCCL_NODE_ID": "first" if rank < 2 else "second"}


def test_moved_values_between_uneven_nodes_equal_those_sent() -> None:
    run_ranks(check_moves, 3, backend="hccl", env=node_of)


def check_coalesced(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    inputs = [torch.full((size,), float(rank)) for size in (2, 0, 3)]
    outputs = [torch.empty(world_size, size) for size in (2, 0, 3)]
    group.all_gather_single_coalesced(outputs, inputs).wait()
    for output in outputs:
        assert all((output[r] == r).all() for r in range(world_size))
    lists = [[torch.empty_like(t) for t in inputs] for _ in range(world_size)]
    dist.all_gather_coalesced(lists, inputs)
    for r, tensors in enumerate(lists):
        assert [t.tolist() for t in tensors] == [[float(r)] * 2, [], [float(r)] * 3]
    outputs = [torch.empty(world_size), torch.empty(world_size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_single(output, torch.full((1,), float(rank)))
    manager.wait()
    for output in outputs:
        assert output.tolist() == list(range(world_size))


def test_coalesced_gathers_equal_single_ones() -> None:
    run_ranks(check_coalesced, 3, backend="hccl")


def check_objects(rank: int, world_size: int) -> None:
    mine = {"rank": rank, "text": "x" * rank * 1000}
    everyone = [{"rank": r, "text": "x" * r * 1000} for r in range(world_size)]
    gathered: list[object] = [None] * world_size
    dist.all_gather_object(gathered, mine)
    assert gathered == everyone
    gathered = [None] * world_size
    dist.gather_object(mine, gathered if rank == 1 else None, 1)
    assert gathered == (everyone if rank == 1 else [None] * world_size)
    objects = [mine, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == [everyone[1], 1]
    one: list[object] = [None]
    dist.scatter_object_list(one, everyone if rank == 0 else None, 0)
    assert one == [mine]
    if rank == 0:
        dist.send_object_list([everyone, 7], 1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == [everyone, 7]


def test_object_collectives_carry_pickles() -> None:
    run_ranks(check_objects, 3, backend="hccl")


def check_point_to_point(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    for dtype, shape in CASES:
        tensor = torch.empty(shape, dtype=dtype)
        if rank == 0:
            dist.send(contribution(0, shape, dtype), right, tag=3)
            assert dist.recv(tensor, left, tag=3) == left
        else:
            assert dist.recv(tensor, left, tag=3) == left
            dist.send(contribution(rank, shape, dtype), right, tag=3)
        same(tensor, contribution(left, shape, dtype), (dtype, shape))
    # Received in the opposite order of sending, large enough to be in several pieces.
    count = 200_003
    sends = [
        dist.isend(torch.full((count,), 10.0 * rank + tag), right, tag=tag) for tag in range(4)
    ]
    buffers = [torch.empty(count) for _ in range(4)]
    receives = [dist.irecv(buffers[tag], left, tag=tag) for tag in reversed(range(4))]
    for work in receives + sends:
        work.wait()
    for tag, buffer in enumerate(buffers):
        assert (buffer == 10.0 * left + tag).all()
    # Receives first, on every rank, into every second element.
    strided = torch.zeros(10)
    receive = dist.irecv(strided[::2], left, tag=9)
    send = dist.isend(torch.arange(10.0)[1::2] + rank, right, tag=9)
    receive.wait()
    send.wait()
    assert strided.tolist() == [x for i in range(5) for x in (2 * i + 1 + left, 0)]
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
        dist.P2POp(dist.irecv, torch.empty(3), left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert ops[1].tensor.tolist() == [float(left)] * 3
    check_any_source(rank, world_size)


def check_any_source(rank: int, world_size: int) -> None:
    if rank == 0:
        sources = set()
        for _ in range(world_size - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor, tag=5)
            assert tensor.item() == source
            sources.add(source)
        assert sources == set(range(1, world_size))
    else:
        dist.send(torch.full((1,), float(rank)), 0, tag=5)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_point_to_point_any_order_and_tag_arrives(world_size: int) -> None:
    run_ranks(check_point_to_point, world_size, backend="hccl", env=node_of)


def check_send_to_self(rank: int, world_size: int) -> None:
    received = torch.empty(5)
    send = dist.isend(torch.arange(5.0), rank, tag=1)
    receive = dist.irecv(received, rank, tag=1)
    receive.wait()
    send.wait()
    assert received.tolist() == [0, 1, 2, 3, 4]


def test_send_to_oneself_arrives() -> None:
    run_ranks(check_send_to_self, 2, backend="hccl")
