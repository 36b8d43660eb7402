"""Calls in the background: dropped, waited for twice, by others, too briefly, in any order.

And roots that get ahead of the others, which then wait for room.
"""

import gc
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle import Array
from quiet_clock import HANG_S, Moment
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import CollectiveTimeoutError, Communicator, MismatchError
from hccl_py.diagnosis import errors

COUNT = 100_003

ranks = ranks_on("aa", "aaa", "aab")


def _ones(comm: Communicator, count: int = COUNT) -> Array:
    return np.full(count, comm.rank + 1, np.int64)


def _sum(ranks: ThreadRanks) -> int:
    return sum(range(1, ranks.world_size + 1))


def test_dropped_works_finish_and_keep_their_buffers_until_then(ranks: ThreadRanks) -> None:
    dropped = threading.Barrier(ranks.world_size)

    def calls(comm: Communicator) -> tuple[int, int, int]:
        if comm.rank == 0:  # nothing can finish before it calls too
            dropped.wait(HANG_S)
            totals = [_ones(comm) for _ in range(20)]
            for one in totals:
                comm.all_reduce(one)
            comm.barrier()
            return 20, 0, sum(int(one[-1]) for one in totals)
        alive = []
        for _ in range(20):
            array = _ones(comm)
            alive.append(weakref.ref(array))
            comm.nonblocking.all_reduce(array)  # neither work nor array has an owner now
            del array
        gc.collect()
        kept = sum(one() is not None for one in alive)
        arrays = [one() for one in alive]
        dropped.wait(HANG_S)
        comm.barrier()
        sums = [int(one[-1]) for one in arrays if one is not None]
        del arrays
        # Any later call in the background lets go of what is done.
        comm.nonblocking.send(np.zeros(1), comm.rank)
        comm.recv(np.zeros(1), comm.rank)
        return kept, sum(one() is not None for one in alive), sum(sums)

    assert ranks.run(calls) == [(20, 0, 20 * _sum(ranks))] * ranks.world_size


def test_wait_too_short_raises_and_can_be_repeated(ranks: ThreadRanks) -> None:
    tried = threading.Barrier(ranks.world_size)

    def calls(comm: Communicator) -> int:
        data = _ones(comm)
        if comm.rank == 0:  # nothing can finish before it calls too
            tried.wait(HANG_S)
            comm.all_reduce(data)
            return int(data[0])
        work = comm.nonblocking.all_reduce(data)
        began = time.monotonic()
        with pytest.raises(CollectiveTimeoutError, match=r"0\.2 s.*call itself continues"):
            work.wait(0.2)
        assert time.monotonic() - began > 0.19
        with pytest.raises(TimeoutError):
            work.wait(0)
        assert not work.done()
        assert work.exception() is None
        tried.wait(HANG_S)
        work.wait(HANG_S)
        work.wait()
        return int(data[0])

    assert ranks.run(calls) == [_sum(ranks)] * ranks.world_size


def test_several_threads_wait_for_one_call(ranks: ThreadRanks) -> None:
    def calls(comm: Communicator) -> list[int]:
        data = _ones(comm)
        work = comm.nonblocking.all_reduce(data)

        def wait(_: int) -> int:
            work.wait(HANG_S)
            return int(data[-1])

        with ThreadPoolExecutor(3) as threads:
            return list(threads.map(wait, range(3)))

    assert ranks.run(calls) == [[_sum(ranks)] * 3] * ranks.world_size


def test_messages_of_several_threads_find_each_other(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def talk(comm: Communicator) -> list[int]:
        def pass_on(tag: int) -> int:
            received = np.zeros(COUNT, np.int64)
            sent = np.full(COUNT, 10 * comm.rank + tag)
            work = comm.nonblocking.send(sent, (comm.rank + 1) % n, tag=tag)
            comm.recv(received, (comm.rank - 1) % n, tag=tag)
            work.wait(HANG_S)
            return int(received[-1])

        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(pass_on, range(8)))

    assert ranks.run(talk) == [[10 * ((me - 1) % n) + tag for tag in range(8)] for me in range(n)]


@pytest.mark.parametrize("count", [3, 10_000], ids=["short", "long"])
def test_recv_of_another_size_fails_alone(ranks: ThreadRanks, count: int) -> None:
    def calls(comm: Communicator) -> str | None:
        message = None
        if comm.rank == 0:
            try:
                comm.send(np.zeros(count), 1, tag=5)
            except MismatchError as error:
                assert count > 1000  # a short message is gone before anybody looks at it
                message = str(error)
        elif comm.rank == 1:
            with pytest.raises(MismatchError) as caught:
                comm.recv(np.zeros(count + 1), 0, tag=5)
            message = str(caught.value)
        comm.barrier()
        return message

    sender, receiver = ranks.run(calls)[:2]
    bytes_sent, room = 8 * count, 8 * count + 8
    assert receiver is not None
    assert f"recv({room} bytes from rank 0, tag 5)" in receiver
    assert f"{bytes_sent} bytes came from rank 0 for a buffer of {room} bytes" in receiver
    if count > 1000:
        assert sender is not None
        assert f"send({bytes_sent} bytes to rank 1, tag 5)" in sender


def test_recv_timeout_ends_that_recv_only(ranks: ThreadRanks) -> None:
    def calls(comm: Communicator) -> None:
        late = comm.nonblocking.recv(np.zeros(1), None, tag=77, timeout_s=0.2)
        with pytest.raises(CollectiveTimeoutError, match=r"recv\(8 bytes from any rank, tag 77\)"):
            late.wait(HANG_S)
        assert isinstance(late.exception(), CollectiveTimeoutError)
        comm.barrier()

    ranks.run(calls)


def test_wait_for_a_recv_that_expires_names_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_WINDOW_OF_WAIT", HANG_S)
    with ThreadRanks("ab") as ranks:

        def call(comm: Communicator) -> str:
            data = np.ones(4)
            if comm.rank == 1:
                comm.barrier()
                comm.send(data, 0)
                return ""
            work = comm.nonblocking.recv(data, 1)
            with pytest.raises(CollectiveTimeoutError) as caught:
                work.wait(0.2)
            comm.barrier()
            work.wait()
            return str(caught.value)

        text = ranks.run(call)[0]
        assert "recv(32 bytes from rank 1, tag 0): Timed out after 0.2 s" in text
        assert "waiting for rank 1 (host " in text


def test_root_whose_readers_have_left_no_room_waits_for_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "_WINDOW_OF_WAIT", HANG_S)
    with ThreadRanks("aaa") as ranks:
        came = threading.Event()

        def call(comm: Communicator) -> str:
            data = np.full(8 << 20, comm.rank, np.uint8)
            text = ""
            if comm.rank == 2:
                assert came.wait(HANG_S)
                comm.broadcast(data, 0)
            else:
                work = comm.nonblocking.broadcast(data, 0)
                if comm.rank == 0:
                    with pytest.raises(CollectiveTimeoutError) as caught:
                        work.wait(0.5)
                    text = str(caught.value)
                    came.set()
                work.wait()
            assert not data.any()
            return text

        text = ranks.run(call)[0]
        assert re.search(r"waiting for rank 2\b(?!, rank 1)", text), text
        assert "rank 1 (" not in text, text


def test_root_that_waits_for_room_is_woken_by_a_reader() -> None:
    late_s, num_calls = 0.005, 9
    with ThreadRanks("aaa") as ranks:

        def call(comm: Communicator) -> list[float]:
            data = np.full(8 << 20, comm.rank, np.uint8)
            took_s = []
            for _ in range(num_calls):
                comm.barrier()
                if comm.rank == 2:
                    time.sleep(late_s)  # as if it computed
                began = Moment.now()
                comm.broadcast(data, 0)
                took_s.append(Moment.now() - began)
                assert not data.any()
            return took_s

        # Who is not woken sleeps 100 ms.
        assert sorted(ranks.run(call)[0])[num_calls // 2] < 0.09


CALLS_AHEAD = 256


@pytest.mark.parametrize("count", [1, 3000])  # in the cell, and in one of the eight areas
def test_root_that_gets_ahead_waits_for_room_and_loses_nothing(count: int) -> None:
    def call(comm: Communicator) -> list[float]:
        got = []
        for number in range(3 * CALLS_AHEAD):
            data = np.full(count, number if comm.rank == 0 else -1, np.float32)
            comm.broadcast(data, 0)
            assert (data == data[0]).all()
            got.append(float(data[0]))
        return got

    with ThreadRanks("aaa") as ranks:
        assert ranks.run(call) == [[float(number) for number in range(3 * CALLS_AHEAD)]] * 3


def test_ranks_that_never_read_each_other_agree_at_the_next_barrier() -> None:
    """They look back at what the others posted, while those go on to post in the same cells."""

    def call(comm: Communicator) -> None:
        data = np.ones(2048, np.float32)
        for _ in range(60):
            for _ in range(CALLS_AHEAD + 36):
                comm.reduce(data, 0)
            data[:] = 1
            comm.barrier()

    with ThreadRanks("aaaa") as ranks:
        ranks.run(call)


def test_root_that_waits_for_room_names_who_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_WINDOW_OF_WAIT", HANG_S)  # a slow machine answers late
    expired = threading.Event()

    def call(comm: Communicator) -> CollectiveTimeoutError | None:
        data = np.full(1, comm.rank, np.float32)
        calls = CALLS_AHEAD + 1 if comm.rank == 1 else 1
        if comm.rank == 2:
            expired.wait(HANG_S)
        if comm.rank != 0:
            for _ in range(calls):
                comm.broadcast(data, 0)
            return None
        for _ in range(CALLS_AHEAD):
            comm.broadcast(data, 0)
        work = comm.nonblocking.broadcast(data, 0)
        with pytest.raises(CollectiveTimeoutError) as caught:
            work.wait(1.0)
        expired.set()
        work.wait()  # rank 2 ends its first call, and so there is room
        return caught.value

    with ThreadRanks("aaa") as ranks:
        error = ranks.run(call)[0]
        assert error is not None
        assert error.rank == 2, error
