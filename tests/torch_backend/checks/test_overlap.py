"""Tensors of one call that share memory: in place where the page says so, else refused by name."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from hccl_py.transport.errors import InvalidArgumentError

K = 3  # elements of a block
CPU = torch.device("cpu")


def blocks(buffer: Tensor, n: int) -> list[Tensor]:
    return list(buffer[: n * K].split(K))


def overlapping_calls(rank: int, n: int) -> list[tuple[str, Callable[[Tensor], object]]]:
    """Return (both arguments, the call on blocks of a buffer)."""
    group, other = dist.group.WORLD, (rank + 1) % n * K
    end = slice(n * K, (n + 1) * K)

    def coalesced(buffer: Tensor) -> None:
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(buffer[: n * K], buffer[end])
            dist.all_gather_into_tensor(buffer[1 : n * K + 1], buffer[-K:])

    gather_into, scatter_into = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
    return [
        ("output input", lambda b: gather_into(b[: n * K], b[rank * K + 1 :][:K])),
        ("output input", lambda b: gather_into(b[: n * K], b[other:][:K])),
        ("tensor_list[0] tensor_list[1]", lambda b: dist.all_gather([b[:K]] * n, b[end])),
        (
            "tensor_list[0] tensor_list[1]",
            lambda b: dist.all_gather([b[i:][:K] for i in range(n)], b[-K:]),
        ),
        ("tensor_list tensor", lambda b: dist.all_gather(blocks(b, n), b[other:][:K])),
        ("tensor_list[0] tensor_list[1]", lambda b: dist.all_gather([b[: 2 * K : 2]] * n, b[-K:])),
        ("output input", lambda b: scatter_into(b[other:][:K], b[: n * K])),
        ("output input_list", lambda b: dist.reduce_scatter(b[other:][:K], blocks(b, n))),
        (
            "output input_list",
            lambda b: dist.reduce_scatter(b[: rank + 1], [b[: r + 1] for r in range(n)]),
        ),
        ("output input", lambda b: dist.all_to_all_single(b[: n * K], b[1 : n * K + 1])),
        ("output input", lambda b: dist.all_to_all_single(b[:n], b[1 : n + 1], [1] * n, [1] * n)),
        (
            "output_tensor_list[0] output_tensor_list[1]",
            lambda b: dist.all_to_all([b[:K]] * n, list(b[-n * K :].split(K))),
        ),
        (
            "output_tensor_list input_tensor_list",
            lambda b: dist.all_to_all(blocks(b, n), blocks(b, n)[::-1]),
        ),
        ("gather_list[0] gather_list[1]", lambda b: group.gather([[b[:K]] * n], [b[end]], rank)),
        ("gather_list tensor", lambda b: group.gather([blocks(b, n)], [b[other:][:K]], rank)),
        ("tensor scatter_list", lambda b: group.scatter([b[other:][:K]], [blocks(b, n)], rank)),
        ("tensors[0] tensors[1]", lambda b: dist.all_reduce_coalesced([b[:K], b[:K]])),
        ("tensors[0] tensors[1]", lambda b: dist.all_reduce_coalesced([b[:K], b[1:][:K]])),
        ("output[0] output[1]", coalesced),
        (
            "output[0] input[1]",
            lambda b: group.all_gather_single_coalesced(
                [b[: n * K], b[-n * K :]], [b[end], b[1:][:K]]
            ),
        ),
        (
            "output[0] output[1]",
            lambda b: group.reduce_scatter_single_coalesced(
                [b[:K], b[1:][:K]], [b[-n * K :], b[-n * K :]]
            ),
        ),
    ]


def known_calls(n: int) -> None:
    """Make the shapes of the calls above known."""
    one, whole = torch.zeros(K), torch.zeros(n * K)
    dist.all_gather_into_tensor(whole, one)
    dist.all_gather([torch.zeros(K) for _ in range(n)], one)
    dist.reduce_scatter_tensor(one, whole)
    dist.all_to_all_single(whole, torch.zeros(n * K))


def check_overlaps(rank: int, n: int) -> int:
    calls = overlapping_calls(rank, n)
    for _ in range(2):
        for arguments, call in calls:
            one, other = arguments.split()
            pattern = f"`{re.escape(one)}.*: expected.*`{re.escape(other)}"
            with pytest.raises(InvalidArgumentError, match=pattern):
                call(torch.zeros(40))
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == n, "the group goes on"
        known_calls(n)
    return len(calls)


def test_overlap_is_refused_and_both_arguments_are_named() -> None:
    assert run_ranks(check_overlaps, 2, backend="hccl") == [21] * 2


def check_in_place(rank: int, n: int) -> None:
    own, expected = slice(rank * K, (rank + 1) * K), [float(r) for r in range(n) for _ in range(K)]
    for _ in range(2):
        whole = torch.full((n * K,), float(rank))
        dist.all_gather_into_tensor(whole, whole[own])
        assert whole.tolist() == expected
        listed = [torch.full((K,), float(rank)) for _ in range(n)]
        dist.all_gather(listed, listed[rank])
        assert torch.cat(listed).tolist() == expected
        whole = torch.full((n * K,), float(rank))
        dist.all_to_all_single(whole, whole)
        assert whole.tolist() == expected
        sent, got = [1 + rank] * n, [1 + r for r in range(n)]
        if sum(sent) == sum(got):
            data = torch.full((sum(sent),), float(rank))
            dist.all_to_all_single(data, data, got, sent)
        else:
            data = torch.zeros(sum(got))
            dist.all_to_all_single(data, torch.full((sum(sent),), float(rank)), got, sent)
        assert data.tolist() == [float(r) for r in range(n) for _ in range(r + 1)]
        columns = torch.zeros(K, n)
        dist.all_gather(list(columns.unbind(1)), torch.full((K,), float(rank)))
        assert columns.t().flatten().tolist() == expected, "columns lie between columns"
        parts = [torch.full((K,), float(rank)) for _ in range(n)]
        dist.reduce_scatter(parts[rank], parts)
        assert parts[rank].tolist() == [float(sum(range(n)))] * K
        uneven = [torch.full((r + 1,), float(rank)) for r in range(n)]
        dist.reduce_scatter(uneven[rank], uneven)
        assert uneven[rank].tolist() == [float(sum(range(n)))] * (rank + 1)
        empty = torch.zeros(0)
        dist.all_gather([empty] * n, empty)


def test_in_place_calls_give_the_values_of_calls_apart() -> None:
    run_ranks(check_in_place, 3, backend="hccl")


def check_batches(rank: int, n: int) -> None:
    send, recv = (lambda t, peer, op=op: dist.P2POp(op, t, peer) for op in (dist.isend, dist.irecv))
    near, far = (rank + 1) % n, (rank - 1) % n
    for wrong in (
        lambda b: [recv(b[:4], far), recv(b[3:8], near)],
        lambda b: [send(b, near), recv(b, far)],
        lambda b: [send(b[8:], near), recv(b[0:9:2], far), send(b[1::2], near)],
        lambda b: [recv(b.view(3, 4)[:, 1], far), recv(b.view(3, 4)[:, 1:3], near)],
        lambda b: [recv(b[:1], far), recv(torch.nn.Parameter(b[:2]), far)],
    ):
        buffer = torch.arange(12.0)
        with pytest.raises(InvalidArgumentError, match=r"call \d, \w+\(.*call \d, \w+\("):
            dist.batch_isend_irecv(wrong(buffer))
        assert buffer.tolist() == list(range(12))
    with pytest.raises(InvalidArgumentError, match="call 1, send.*call 2, recv"):
        torch.ops._c10d_functional.batch_p2p_ops(
            ["isend", "irecv"], [near, far], [0, 0], [buffer, buffer], dist.group.WORLD.group_name
        )
    with pytest.raises(InvalidArgumentError, match="layout"):
        dist.batch_isend_irecv([recv(torch.eye(3).to_sparse(), far)])
    buffer, got = torch.full((4,), float(rank)), torch.zeros(4, n)
    everyone = range(n)
    ops = [send(buffer, peer) for peer in everyone if peer != rank]  # one buffer to all
    ops += [recv(got[:, peer], peer) for peer in everyone if peer != rank]  # columns
    ops += [send(buffer[:0], near), recv(buffer[2:2], far)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    got[:, rank] = rank
    assert got.tolist() == [[float(peer) for peer in everyone]] * 4, "no transfer was left behind"


def test_transfers_of_a_batch_that_share_memory_are_refused_before_one_begins() -> None:
    run_ranks(check_batches, 3, backend="hccl")


def check_blocks(rank: int, n: int) -> None:
    """Ranks differ in what they refuse here, so nothing may have begun on any of them."""
    peer = 1 - rank
    wrong: list[Callable[[Tensor], object]] = [
        lambda b: (dist.irecv(b[:4], peer), dist.isend(b[3:6], peer)),
        lambda b: (dist.irecv(b[::2], peer), dist.isend(b[::4], peer)),
        lambda b: (dist.broadcast(b[:4], peer), dist.isend(b[:1], peer)),
        lambda b: (dist.all_reduce(b[:4]), dist.broadcast(b[3:5], 0)),
        lambda b: (
            dist.scatter(b[:1], list(b[:n].split(1)) if rank == 0 else None, 0),
            dist.all_reduce(b),
        ),
        lambda b: (dist.all_to_all_single(b[:4], b[4:8]), dist.irecv(b[4:5], peer)),
        lambda b: (dist.all_gather(list(b[:4].split(2)), b[4:6]), dist.reduce(b[1:2], rank)),
        lambda b: [
            dist.reduce_scatter_tensor(b[:2], b[4:8]),
            dist.all_to_all_single(b[4:8], b[8:]),
        ],
    ]
    for block in wrong:
        buffer = torch.arange(12.0)
        with (
            pytest.raises(InvalidArgumentError, match=r"call 1, \w+.*call 2, \w+"),
            dist._coalescing_manager(device=CPU),
        ):
            block(buffer)
        assert buffer.tolist() == list(range(12))
    whole, columns = torch.full((4,), float(rank)), torch.zeros(4, 2)
    with dist._coalescing_manager(device=CPU, async_ops=True) as works:
        received = dist.irecv(columns[:, 1], peer)
        dist.isend(whole, peer)
        dist.broadcast(columns[:, 0], 1) if rank == 0 else dist.broadcast(whole, 1)
        with pytest.raises(InvalidArgumentError, match="after the block"):
            received.wait()
    works.wait()
    assert columns.tolist() == [[float(rank == 0), float(peer)]] * 4
    dist.broadcast(whole, 1)
    assert whole.tolist() == [1.0] * 4, "a call after the block runs at once"


def test_calls_of_a_coalesced_block_that_share_memory_are_refused_before_one_begins() -> None:
    run_ranks(check_blocks, 2, backend="hccl")
