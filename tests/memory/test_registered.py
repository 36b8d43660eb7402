"""Registered memory: collectives that run in place on it, and what becomes of it.

The oracle is the same call on other memory, bit by bit; that one is compared with numpy elsewhere.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guarded import Guarded
from oracle import contribution
from ranks import run_ranks
from thread_ranks import ThreadRanks, ranks_on, wait_until

import hccl_py
from hccl_py import (
    AbortedError,
    CollectiveTimeoutError,
    Communicator,
    InvalidArgumentError,
    MismatchError,
)
from hccl_py.transport.arena import arena_of_this_process

LEAST_BYTES = 1 << 18
"""From here on collectives run in place."""

ranks = ranks_on("a", "aa", "aaa", "aaaa", "aaaaa")


pytestmark = pytest.mark.skipif(
    os.environ.get("HCCL_TRANSPORT", "auto") != "auto", reason="ranks share no memory"
)


def num_rendezvous(comm: Communicator, call: Callable[..., object], *args: Any) -> int:
    """Count how many of the collectives of `call` read or wrote registered memory directly."""
    before = comm.statistics()["rendezvous"]
    call(*args)
    return comm.statistics()["rendezvous"] - before


def odd_count(dtype: str, num_blocks: int = 1) -> int:
    """Return elements of a block such that all blocks are just long enough, and odd."""
    item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return LEAST_BYTES // (item * num_blocks) + 13 | 1


def resident_bytes() -> int:
    return os.fstat(arena_of_this_process().fd()).st_blocks * 512


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_all_reduce_has_the_same_bits(ranks: ThreadRanks, dtype: str) -> None:
    values = [contribution(rank, odd_count(dtype), dtype) for rank in range(ranks.world_size)]

    def check(comm: Communicator) -> bytes:
        plain = Guarded(values[comm.rank], dtype)
        registered = Guarded(values[comm.rank], dtype, hccl_py.empty)
        assert num_rendezvous(comm, comm.all_reduce, plain.buffer) == 0
        done = num_rendezvous(comm, comm.all_reduce, registered.buffer)
        assert done == (comm.world_size > 1)
        assert registered.bytes == plain.bytes
        return registered.bytes

    assert len(set(ranks.run(check))) == 1


@pytest.mark.parametrize("where", ["both", "inputs only", "in the output"])
def test_all_gather_collects_all(ranks: ThreadRanks, where: str) -> None:
    n, dtype = ranks.world_size, "complex128"
    count = odd_count(dtype, n)
    expected = np.stack([contribution(rank, count, dtype) for rank in range(n)])

    def check(comm: Communicator) -> None:
        make = np.empty if where == "inputs only" else hccl_py.empty
        output = Guarded(np.zeros((n, count)), dtype, make)
        given = Guarded(expected[comm.rank], dtype, hccl_py.empty)
        source = given.buffer
        if where == "in the output":
            source = output.buffer[comm.rank]
            source[...] = given.buffer
        assert num_rendezvous(comm, comm.all_gather, output.buffer, source) == (n > 1)
        np.testing.assert_array_equal(output.values, expected)
        np.testing.assert_array_equal(given.values, expected[comm.rank])

    ranks.run(check)


@pytest.mark.parametrize("outsider", [0, 2])
def test_memory_of_one_rank_not_registered_gives_the_same_result(outsider: int) -> None:
    def check(comm: Communicator) -> None:
        def make(shape: Any) -> Any:
            if comm.rank == outsider:
                return np.empty(shape, np.float32)
            return hccl_py.empty(shape, np.float32)

        data, blocks = make(100_001), make((3, 50_001))
        data[:] = comm.rank
        blocks[:] = comm.rank

        def use() -> None:
            comm.all_reduce(data)
            comm.reduce_scatter(blocks[comm.rank], blocks)
            comm.all_gather(blocks, blocks[comm.rank])
            comm.broadcast(data, 1)

        assert num_rendezvous(comm, use) > 0  # the other two announce to all
        assert (data == 3).all()
        assert (blocks == 3).all()

    with ThreadRanks("aaa") as ranks:
        ranks.run(check)


def test_ranks_of_two_nodes_announce_inside_a_node() -> None:
    def check(comm: Communicator) -> None:
        data = hccl_py.empty(200_001, np.float32)
        data[:] = 1
        assert num_rendezvous(comm, comm.all_reduce, data) == (comm.rank != 2)
        assert (data == 3).all()

    with ThreadRanks("aab") as ranks:
        ranks.run(check)


def in_processes(rank: int, world_size: int) -> int:
    with Communicator() as comm, Communicator(name="second") as second:
        data = hccl_py.empty(300_001, torch.float32)
        for one in (comm, second):  # they share the process's mapping of each peer
            data.fill_(rank)
            one.all_reduce(data)
            assert bool((data == sum(range(world_size))).all())
        arenas = Path("/proc/self/maps").read_text().count("memfd:hccl-arena")
        wanted = world_size if arena_of_this_process().num_bytes() else world_size - 1
        assert arenas <= wanted
        return comm.statistics()["rendezvous"] + second.statistics()["rendezvous"]


def test_processes_share_their_arenas() -> None:
    assert run_ranks(in_processes, 3) == [2, 2, 2]


@pytest.mark.parametrize("small", [True, False])
def test_different_calls_are_named(small: bool) -> None:
    def check(comm: Communicator) -> None:
        data = hccl_py.empty(100_000 if comm.rank else (100 if small else 90_000))
        comm.all_reduce(data)

    with ThreadRanks("aa") as ranks:
        errors = ranks.failures(check)
    assert all(isinstance(error, MismatchError) for error in errors), errors
    for error in errors:
        assert "float32[100000]" in str(error)
        assert "float32[100]" in str(error) or "float32[90000]" in str(error)


def test_absent_rank_is_named_when_the_time_is_up() -> None:
    with ThreadRanks("aaa") as ranks:

        def check(comm: Communicator) -> None:
            if comm.rank != 1:
                comm.all_reduce(hccl_py.empty(100_000), timeout_s=0.3)

        errors = ranks.failures(check)
    for rank in (0, 2):
        assert isinstance(errors[rank], CollectiveTimeoutError)
        assert "rank 1" in str(errors[rank])
        assert "of 400000 bytes moved" in str(errors[rank])


def _num_sent(comm: Communicator) -> int:
    return comm.statistics()["devices"]["shm"]["messages"]


def test_abort_ends_the_call_and_its_memory_is_not_used_again() -> None:
    with ThreadRanks("aa") as ranks:
        held = [hccl_py.empty(1 << 19, np.float32)]
        address = held[0].ctypes.data

        def check(comm: Communicator) -> None:
            if comm.rank == 0:
                comm.all_reduce(held[0])
            else:
                first = ranks.communicators[0]
                wait_until(lambda: _num_sent(first) > 0, "it has announced")
                comm.abort("enough")

        errors = ranks.failures(check)
    assert isinstance(errors[0], AbortedError)
    held.clear()
    again = [hccl_py.empty(1 << 19, np.float32) for _ in range(3)]
    assert address not in [one.ctypes.data for one in again]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, torch.bfloat16, torch.bool, "int8"])
@pytest.mark.parametrize("shape", [7, (), (3, 5), (0, 4), (1 << 20, 3)])
def test_empty_has_shape_and_type(shape: Any, dtype: Any) -> None:
    buffer = hccl_py.empty(shape, dtype)
    assert tuple(buffer.shape) == ((shape,) if isinstance(shape, int) else shape)
    if isinstance(dtype, torch.dtype):
        assert isinstance(buffer, torch.Tensor)
        assert buffer.dtype == dtype
        assert buffer.is_contiguous()
    else:
        assert buffer.dtype == np.dtype(dtype)
        assert buffer.flags.c_contiguous
        assert buffer.flags.writeable
    buffer[...] = 1
    assert bool((buffer == 1).all())


def test_empty_refuses_what_is_no_memory() -> None:
    with pytest.raises(InvalidArgumentError, match="^shape: .*-1"):
        hccl_py.empty((3, -1))
    with pytest.raises(InvalidArgumentError, match="object"):
        hccl_py.empty(3, object)
    with pytest.raises(MemoryError, match="bytes of registered memory"):
        hccl_py.empty(1 << 60, np.uint8)


@pytest.mark.parametrize("dtype", [np.float64, torch.float64], ids=["numpy", "torch"])
def test_memory_goes_back_to_the_system_with_its_last_view(dtype: Any) -> None:
    before, resident = arena_of_this_process().num_allocated(), resident_bytes()
    buffer = hccl_py.empty((1000, 1000), dtype)
    view = buffer[10:20, ::2]
    assert resident_bytes() >= resident + 8_000_000
    del buffer
    view[...] = 3
    assert arena_of_this_process().num_allocated() > before
    del view
    assert arena_of_this_process().num_allocated() == before
    assert resident_bytes() == resident


def forks(rank: int, world_size: int) -> bool:
    kept = hccl_py.empty(1000)
    kept[:] = 5
    given_up = hccl_py.empty(1000)
    child = os.fork()
    if child == 0:
        address = kept.ctypes.data
        del kept, given_up  # its parent's, not freed here
        mine = hccl_py.empty(1000)
        mine[:] = 6
        os._exit(0 if mine.ctypes.data != address else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return bool((kept == 5).all())


def test_forked_child_has_its_own_registered_memory() -> None:
    assert run_ranks(forks, 1) == [True]


def with_little_address_space(rank: int, world_size: int) -> int:
    import resource

    limit = 64 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.environ["HCCL_ARENA_BYTES"] = str(1 << 40)
    with Communicator() as comm:
        with pytest.raises(MemoryError, match="address space"):
            hccl_py.empty(10)
        data = np.full(300_001, 1, np.float32)
        comm.all_reduce(data)
        assert (data == 2).all()
        return comm.statistics()["rendezvous"]


def test_address_space_that_is_limited_leaves_the_rest_working() -> None:
    assert run_ranks(with_little_address_space, 2) == [0, 0]
