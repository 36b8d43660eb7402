"""Every collective over each value of HCCL_TRANSPORT that keeps ranks from sharing memory.

A sample for every day. The whole suite runs over a transport with

    HCCL_TRANSPORT=zmq pytest tests/communicator tests/torch_backend
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from guarded import Guarded, assert_reduced, contribution, reduced
from ranks import run_ranks
from stores import MemoryStore
from thread_ranks import ThreadRanks

from hccl_py import Communicator, InvalidArgumentError, PeerLostError, ReduceOp
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.providers.verbs import library
from hccl_py.transport.providers.verbs.devices import list_ports

# None, few, uneven parts, more than a slot.
SIZES = (0, 1, 5, 1001, 100_003)
KINDS = [("float32", ReduceOp.SUM), ("bfloat16", ReduceOp.AVG), ("int64", ReduceOp.MAX)]
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module", params=["tcp", "verbs_over_tcp", "zmq"])
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HCCL_TRANSPORT", request.param)
        yield request.param


@pytest.fixture(
    scope="module",
    params=["a", "aa", "aab", pytest.param("aaaa", marks=pytest.mark.nightly("calls")), "aabbc"],
)
def ranks(request: pytest.FixtureRequest, transport: str) -> Iterator[ThreadRanks]:
    with ThreadRanks(request.param) as ranks:
        yield ranks


@pytest.mark.parametrize(("dtype", "op"), KINDS)
def test_reductions_equal_numpy(ranks: ThreadRanks, dtype: str, op: ReduceOp) -> None:
    n = ranks.world_size
    parts = [contribution(rank, n * SIZES[-1], dtype) for rank in range(n)]

    def reduce(comm: Communicator) -> None:
        for count in SIZES:
            mine = [part[: n * count] for part in parts]
            expected = reduced(mine, dtype, op)
            everywhere = Guarded(mine[comm.rank], dtype)
            comm.all_reduce(everywhere.buffer, op)
            assert_reduced(everywhere.values, expected, mine, dtype)
            rooted = Guarded(mine[comm.rank], dtype)
            comm.reduce(rooted.buffer, n - 1, op)
            if comm.rank == n - 1:
                assert_reduced(rooted.values, expected, mine, dtype)
            block = Guarded(np.zeros(count), dtype)
            comm.reduce_scatter(block.buffer, Guarded(mine[comm.rank], dtype).buffer, op)
            own = slice(comm.rank * count, (comm.rank + 1) * count)
            assert_reduced(block.values, expected[own], mine, dtype)

    ranks.run(reduce)


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_compressed_sums_have_the_same_bits_everywhere(
    ranks: ThreadRanks, compression: str
) -> None:
    n = ranks.world_size
    parts = [np.sin(np.arange(SIZES[-1], dtype=np.float32) * (7 + rank)) for rank in range(n)]

    def all_reduce(comm: Communicator) -> Array:
        data = parts[comm.rank].copy()
        comm.all_reduce(data, compression=compression)
        return data

    results = ranks.run(all_reduce)
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], np.sum(parts, 0), rtol=0, atol=0.02 * n)


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_moves_carry_every_byte(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size

    def blocks(rank: int, count: int) -> Array:
        return contribution(rank, n * count, dtype).reshape(n, count)

    def move(comm: Communicator) -> None:
        me, root = comm.rank, n // 2
        for count in SIZES:
            sent = [blocks(rank, count) for rank in range(n)]
            data = Guarded(sent[me], dtype)
            comm.broadcast(data.buffer, root)
            assert data.bytes == sent[root].tobytes()
            gathered = Guarded(np.zeros((n, count)), dtype)
            comm.all_gather(gathered.buffer, sent[me][0])
            assert gathered.bytes == b"".join(one[0].tobytes() for one in sent)
            exchanged = Guarded(np.zeros((n, count)), dtype)
            comm.all_to_all(exchanged.buffer, sent[me])
            assert exchanged.bytes == b"".join(one[me].tobytes() for one in sent)
            rooted = Guarded(np.zeros((n, count)), dtype)
            comm.gather(rooted.buffer if me == root else None, sent[me][0], root)
            if me == root:
                assert rooted.bytes == gathered.bytes
            own = Guarded(np.zeros(count), dtype)
            comm.scatter(own.buffer, sent[me] if me == root else None, root)
            assert own.bytes == sent[root][me].tobytes()
            passed = Guarded(np.zeros((n, count)), dtype)
            work = comm.nonblocking.send(sent[me], (me + 1) % n)
            comm.recv(passed.buffer, (me - 1) % n)
            work.wait()
            assert passed.bytes == sent[(me - 1) % n].tobytes()
            comm.barrier()

    ranks.run(move)


def one_dies(rank: int, world_size: int) -> None:
    comm = Communicator()
    if rank == 1:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    # Its last message may die with it, in the queue of ZeroMQ's thread: then the barrier tells.
    with pytest.raises(PeerLostError) as caught:
        comm.barrier()
        for _ in range(1000):
            comm.all_reduce(np.ones(100_000))
    assert caught.value.rank == 1


def test_killed_rank_is_named(transport: str) -> None:
    run_ranks(one_dies, 3, env={"HCCL_TRANSPORT": transport}, victims=[1])


def disagree(rank: int, world_size: int) -> str:
    with pytest.raises(BootstrapError) as caught:
        Communicator()
    return str(caught.value)


def test_ranks_that_disagree_are_told_both_values() -> None:
    values = ["zmq", "tcp"]
    for message in run_ranks(disagree, 2, env=lambda rank: {"HCCL_TRANSPORT": values[rank]}):
        assert "HCCL_TRANSPORT is 'zmq' on rank 0, 'tcp' on rank 1" in message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "pigeon",
            "HCCL_TRANSPORT=pigeon: expected one of auto, tcp, verbs, verbs_over_tcp, zmq, or "
            "module:Class",
        ),
        ("no_such_module:Provider", "No module named 'no_such_module'"),
        ("zmq:Pigeon", "has no attribute 'Pigeon'"),
    ],
)
def test_unknown_transport_lists_those_there_are(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", value)
    with pytest.raises(InvalidArgumentError, match=message):
        Communicator(MemoryStore(), 1, 2)


@pytest.mark.skipif(bool(list_ports()), reason="this host has an RDMA device")
@pytest.mark.parametrize("has_library", [True, False])
def test_verbs_without_device_or_library_says_how_to_get_them(
    has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first one is a library that every Linux has.
    file = "libc.so.6" if has_library else "libibverbs-that-is-missing.so.1"
    monkeypatch.setattr(library, "_FILE", file)
    monkeypatch.setenv("HCCL_TRANSPORT", "verbs")
    with pytest.raises(BootstrapError) as caught:
        Communicator(MemoryStore(), 1, 2)
    said = str(caught.value)
    assert "HCCL_TRANSPORT=verbs: " in said
    assert "this host has no RDMA device" in said and "modprobe rdma_rxe" in said
    assert ("apt install ibverbs-providers" in said) is not has_library
