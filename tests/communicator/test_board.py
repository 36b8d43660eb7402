"""Small calls on one node, where a root may get ahead of the others and must then wait for them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from quiet_clock import HANG_S
from thread_ranks import ThreadRanks

from hccl_py import Communicator
from hccl_py.diagnosis import errors
from hccl_py.transport.errors import CollectiveTimeoutError

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
