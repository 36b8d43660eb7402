"""Windows: puts and signals arrive in order, on one node and between nodes, and errors name ranks.

The oracle is numpy on the same indices.
"""

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from quiet_clock import HANG_S
from thread_ranks import ThreadRanks, ranks_on
from tiers import by_night

import hccl_py
from hccl_py import (
    AbortedError,
    CollectiveTimeoutError,
    Communicator,
    InvalidArgumentError,
)

LONG = 300_007
"""Elements of a message in many parts."""

local = ranks_on("aaa")
SHARES_MEMORY = os.environ.get("HCCL_TRANSPORT", "auto") == "auto"


@pytest.fixture(
    scope="module",
    params=[
        "aaa auto",
        "aab auto",
        "abc auto",
        *by_night("calls", "aaa tcp", "aab verbs_over_tcp", "abc zmq"),
    ],
)
def ranks(request: pytest.FixtureRequest) -> Iterator[ThreadRanks]:
    nodes, transport = request.param.split()
    with pytest.MonkeyPatch.context() as patch:
        if transport != "auto":
            patch.setenv("HCCL_TRANSPORT", transport)
        with ThreadRanks(nodes) as ranks:
            yield ranks


def neighbours(comm: Communicator) -> tuple[int, int]:
    return (comm.rank + 1) % 3, (comm.rank - 1) % 3


def values_of(rank: int, count: int, dtype: Any = np.float32) -> Any:
    return (np.arange(count) * 3 + rank * 1000).astype(dtype)


@pytest.mark.parametrize("count", [1, 5, 4097, LONG])
@pytest.mark.parametrize("registered", [True, False])
def test_put_then_signal_delivers_every_element(
    ranks: ThreadRanks, count: int, registered: bool
) -> None:
    n = ranks.world_size

    def check(comm: Communicator) -> None:
        make = hccl_py.empty if registered else np.empty
        buffer = make((n + 1, count), np.float32)
        buffer[:] = -1
        with comm.window(buffer) as window:
            for step in range(1, n):
                peer = (comm.rank + step) % n
                window.put(values_of(comm.rank, count), peer, comm.rank * count)
                window.signal(peer)
            window.put(values_of(comm.rank, count), comm.rank, comm.rank * count)
            for step in range(1, n):
                window.wait_signal((comm.rank + step) % n)
            expected = np.stack([*(values_of(one, count) for one in range(n)), np.full(count, -1)])
            np.testing.assert_array_equal(buffer, expected)

    ranks.run(check)


def test_signals_follow_the_puts_before_them_in_many_rounds(ranks: ThreadRanks) -> None:
    rounds = 40

    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        buffer = hccl_py.empty((2, 999), np.int64)
        buffer[:] = 0
        with comm.window(buffer) as window:
            for step in range(rounds):
                window.put(np.full(999, step * 10 + comm.rank), peer, step % 2 * 999)
                window.signal(peer)
                window.wait_signal(source)
                assert (buffer[step % 2] == step * 10 + source).all()
                window.signal(source)  # it may overwrite the other half
                window.wait_signal(peer)

    ranks.run(check)


def test_nonblocking_puts_arrive_before_the_signal_that_follows_them(ranks: ThreadRanks) -> None:
    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        buffer = hccl_py.empty((4, LONG), np.float64)
        parts = [values_of(comm.rank + 10 * part, LONG, np.float64) for part in range(4)]
        with comm.window(buffer) as window:
            waiting = window.nonblocking.wait_signal(source)
            works = [
                window.nonblocking.put(part, peer, place * LONG) for place, part in enumerate(parts)
            ]
            works.append(window.nonblocking.signal(peer))
            waiting.wait(HANG_S)
            for part in range(4):
                expected = values_of(source + 10 * part, LONG, np.float64)
                np.testing.assert_array_equal(buffer[part], expected)
            for work in works:
                work.wait(HANG_S)
                assert work.done()

    ranks.run(check)


def test_each_wait_takes_one_signal(ranks: ThreadRanks) -> None:
    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        with comm.window(hccl_py.empty(1)) as window:
            for _ in range(3):
                window.signal(peer)
            for _ in range(3):
                window.wait_signal(source)
            with pytest.raises(CollectiveTimeoutError) as caught:
                window.wait_signal(source, timeout_s=0.05)
            assert caught.value.rank == source
            comm.barrier()  # the communicator is intact
            window.signal(peer)
            window.wait_signal(source)

    ranks.run(check)


def test_put_needs_no_call_of_its_target(ranks: ThreadRanks) -> None:
    """Rank 2 makes no call while long puts of the others end."""
    ended = threading.Barrier(3)

    def check(comm: Communicator) -> None:
        buffer = hccl_py.empty((3, 8 * LONG), np.float32)
        with comm.window(buffer) as window:
            if comm.rank < 2:
                window.put(values_of(comm.rank, 8 * LONG), 2, comm.rank * 8 * LONG)
                window.signal(2)
            ended.wait(HANG_S)
            if comm.rank == 2:
                for source in range(2):
                    window.wait_signal(source)
                    expected = values_of(source, 8 * LONG)
                    np.testing.assert_array_equal(buffer[source], expected)

    ranks.run(check)


def test_sizes_may_differ_between_ranks_and_be_zero(ranks: ThreadRanks) -> None:
    sizes = [5, 0, 3]

    def check(comm: Communicator) -> None:
        buffer = hccl_py.empty(sizes[comm.rank], np.int32)
        buffer[:] = 0
        with comm.window(buffer) as window:
            assert window.counts == (5, 0, 3)
            for peer, size in enumerate(sizes):
                if size:
                    window.put(np.full(1, comm.rank + 1, np.int32), peer, comm.rank)
                window.put(np.empty(0, np.int32), peer, size)
                with pytest.raises(InvalidArgumentError, match=f"exposes {size}"):
                    window.put(np.ones(1, np.int32), peer, size)
                window.signal(peer)
            for peer in range(3):
                window.wait_signal(peer)
            expected = np.zeros(sizes[comm.rank], np.int32)
            if expected.size:
                expected[:3] = [1, 2, 3]
            np.testing.assert_array_equal(buffer, expected)

    ranks.run(check)


def test_two_windows_are_apart(ranks: ThreadRanks) -> None:
    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        one, two = hccl_py.empty(4), hccl_py.empty(4)
        one[:] = two[:] = 0
        with comm.window(one) as first, comm.window(two) as second:
            second.put(np.full(4, 2, np.float32), peer)
            second.signal(peer)
            second.wait_signal(source)
            assert one.tolist() == [0] * 4
            assert two.tolist() == [2] * 4
            with pytest.raises(CollectiveTimeoutError):
                first.wait_signal(source, timeout_s=0.0)

    ranks.run(check)


@pytest.mark.parametrize("dtype", ["int8", "float64", "bfloat16", "complex64", "bool"])
def test_tensors_of_every_type(ranks: ThreadRanks, dtype: str) -> None:
    kind = getattr(torch, dtype)

    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        buffer = hccl_py.empty((2, 33), kind)
        buffer.zero_()
        with comm.window(buffer) as window:
            window.put((torch.arange(33) + comm.rank).to(kind), peer, 33)
            window.signal(peer)
            window.wait_signal(source)
            assert torch.equal(buffer[1], (torch.arange(33) + source).to(kind))
            assert not buffer[0].any()

    ranks.run(check)


@pytest.mark.skipif(not SHARES_MEMORY, reason="ranks share no memory")
@pytest.mark.parametrize("make", [np.float32, torch.float32])
def test_mapped_view_is_the_memory_of_the_peer(local: ThreadRanks, make: Any) -> None:
    def check(comm: Communicator) -> None:
        peer, source = neighbours(comm)
        buffer = hccl_py.empty((2, 3 + comm.rank), make)
        buffer[:] = comm.rank
        with comm.window(buffer) as window:
            assert all(window.is_mapped(one) for one in range(3))
            view = window.map_remote_tensor(peer)
            assert type(view) is type(buffer)
            assert view.shape == (2 * (3 + peer),)
            window.signal(peer)
            window.wait_signal(source)
            assert (view == peer).all()
            window.signal(peer)
            window.wait_signal(source)
            view[1] = 50 + comm.rank
            window.signal(peer)
            window.wait_signal(source)
            assert buffer[0, 1] == 50 + source
            assert window.map_remote_tensor(comm.rank)[1] == 50 + source

    local.run(check)


def test_view_of_memory_that_is_not_mapped_is_refused_with_the_remedy() -> None:
    def check(comm: Communicator) -> None:
        with comm.window(np.zeros(3)) as window:
            assert not window.is_mapped(1 - comm.rank)
            assert window.map_remote_tensor(comm.rank).size == 3
            with pytest.raises(InvalidArgumentError, match="hccl_py.empty"):
                window.map_remote_tensor(1 - comm.rank)

    with ThreadRanks("aa") as ranks:
        ranks.run(check)


def test_wrong_arguments_are_refused_and_change_nothing(ranks: ThreadRanks) -> None:
    def check(comm: Communicator) -> None:
        with comm.window(hccl_py.empty(8)) as window:
            one = np.ones(1, np.float32)
            for peer in (3, -1, 1.5, None, "0", 1 << 70):
                for call in (lambda p: window.put(one, p), window.signal, window.wait_signal):
                    with pytest.raises(InvalidArgumentError, match="peer"):
                        call(peer)
                with pytest.raises(InvalidArgumentError, match="peer"):
                    window.map_remote_tensor(peer)  # type: ignore[arg-type]
            for offset in (8, -1, 0.5, None, 1 << 62, 1 << 80):
                with pytest.raises(InvalidArgumentError, match="offset|exposes 8"):
                    window.put(one, 0, offset)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="exposes 8"):
                window.put(np.ones(9, np.float32), 0)
            for data in (np.ones(1), torch.ones(1, dtype=torch.int32)):
                with pytest.raises(InvalidArgumentError, match="float32"):
                    window.put(data, 0)
            for data in (np.ones((4, 4), np.float32)[:, 1], 3.0, [1.0]):
                with pytest.raises(InvalidArgumentError, match="data"):
                    window.put(data, 0)
            with pytest.raises(InvalidArgumentError, match="timeout_s"):
                window.put(np.ones(1, np.float32), 0, timeout_s=-1)
            window.put(one, np.int64(0), np.int64(comm.rank))  # type: ignore[arg-type]
            read_only = np.ones(1, np.float32)
            read_only.flags.writeable = False
            window.put(read_only, 0, comm.rank)
            for peer in range(3):
                window.put(one, peer, comm.rank, timeout_s=HANG_S)
                window.signal(peer, timeout_s=HANG_S)
                window.wait_signal(peer, timeout_s=HANG_S)

    ranks.run(check)


def test_element_types_that_differ_are_an_error_on_all_ranks(ranks: ThreadRanks) -> None:
    def check(comm: Communicator) -> None:
        kinds = np.float32, np.float32, np.int32
        with pytest.raises(InvalidArgumentError, match="int32 on rank 2"):
            comm.window(hccl_py.empty(3, kinds[comm.rank]))
        comm.window(hccl_py.empty(3)).close()

    ranks.run(check)


def test_closed_window_and_communicator_reject_calls() -> None:
    def check(comm: Communicator) -> None:
        one = np.ones(1, np.float32)
        closed, left = comm.window(hccl_py.empty(3)), comm.window(hccl_py.empty(3))
        closed.close()
        closed.close()
        for window, error in ((closed, InvalidArgumentError), (left, AbortedError)):
            if window is left:
                comm.close()
            for peer in range(2):
                for call in (lambda p, w=window: w.put(one, p), window.signal, window.wait_signal):
                    with pytest.raises(error, match="closed"):
                        call(peer)
        left.close()

    for nodes in ("aa", "ab"):
        with ThreadRanks(nodes) as ranks:
            ranks.run(check)


def test_window_inside_of_a_group_is_refused() -> None:
    with ThreadRanks("a") as ranks:

        def check(comm: Communicator) -> None:
            with hccl_py.group(), pytest.raises(InvalidArgumentError, match="group"):
                comm.window(hccl_py.empty(3))
            with comm.window(hccl_py.empty(3)) as window:
                window.put(np.ones(3, np.float32), 0)
                window.signal(0)
                window.wait_signal(0)

        ranks.run(check)


def test_several_threads_put_and_signal_at_once(ranks: ThreadRanks) -> None:
    threads, rounds = 4, 50

    def check(comm: Communicator) -> None:
        buffer = hccl_py.empty((3, threads, 64), np.int64)
        buffer[:] = -1
        with comm.window(buffer) as window:

            def put(place: int) -> None:
                for step in range(rounds):
                    data = np.full(64, step)
                    for peer in range(3):
                        window.put(data, peer, (comm.rank * threads + place) * 64)
                        window.signal(peer)

            running = [threading.Thread(target=put, args=(one,)) for one in range(threads)]
            for thread in running:
                thread.start()
            for peer in range(3):
                for _ in range(threads * rounds):
                    window.wait_signal(peer)
            for thread in running:
                thread.join()
            assert (buffer == rounds - 1).all()

    ranks.run(check)


def test_flight_recorder_names_calls_of_windows() -> None:
    def check(comm: Communicator) -> None:
        with comm.window(np.zeros(4)) as window:
            window.put(np.ones(2), 1 - comm.rank)
            window.signal(1 - comm.rank)
            window.wait_signal(1 - comm.rank, timeout_s=HANG_S)
            names = [entry["call"] for entry in comm.flight_recorder.entries()]
            other = 1 - comm.rank
            assert f"put(16 bytes to rank {other})" in names
            assert f"wait_signal(from rank {other})" in names

    with ThreadRanks("ab") as ranks:
        ranks.run(check)


def test_dropped_window_of_one_rank_leaves_the_memory_to_its_peers() -> None:
    """A peer may still put: the memory is not allocated again."""
    with ThreadRanks("aa") as ranks:

        def check(comm: Communicator) -> None:
            buffer = hccl_py.empty(1 << 16)
            window = comm.window(buffer)
            if comm.rank == 1:
                begin = buffer.ctypes.data
                del buffer, window
                again = hccl_py.empty(1 << 16)
                assert again.ctypes.data != begin
                again[:] = 7
            comm.barrier()
            if comm.rank == 0:
                window.put(np.ones(1 << 16, np.float32), 1)
            comm.barrier()
            if comm.rank == 1:
                assert (again == 7).all()

        ranks.run(check)
