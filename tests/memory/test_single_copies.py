"""Large payloads in ordinary memory: by slots, or read out of the sender's process.

The mode is looked up by size, plan, and where the ranks run. Whether processes may read each other
depends on the system; the results must not.
"""

import ctypes
import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from rank_processes import Pids
from ranks import run_ranks
from tiers import by_night

import hccl_py
from hccl_py import Communicator, engine
from hccl_py.transport.errors import PeerLostError

LARGE, LARGE_TURNS = (4 << 18) + 5, 2
"""Elements of float32 that take many slots."""


@functools.cache
def _pattern(count: int) -> np.ndarray:
    return (np.arange(count) % 1000).astype(np.float32)


def _numbers(rank: int, turn: int, count: int) -> np.ndarray:
    return _pattern(count) + np.float32(1000 * rank + turn)


def _total(n: int, turn: int, count: int) -> np.ndarray:
    return n * _pattern(count) + np.float32(sum(1000 * rank + turn for rank in range(n)))


def _share_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def _claim_cores() -> None:
    """Let the communicator believe in a core for each rank."""
    engine._cores_of = len


def _hide() -> None:
    """From now on this process cannot read the others', or they cannot read it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0:
        version_3_of_this_process = (ctypes.c_uint32 * 2)(0x20080522, 0)
        no_capabilities = (ctypes.c_uint32 * 6)()
        assert libc.capset(version_3_of_this_process, no_capabilities) == 0, ctypes.get_errno()
    else:
        set_dumpable = 4
        assert libc.prctl(set_dumpable, 0) == 0, ctypes.get_errno()


def _may_read_each_other() -> bool:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return not scope.exists() or scope.read_text().strip() == "0"


def every_collective(rank: int, n: int, count: int, num_turns: int) -> int:
    """What a rank has sent it overwrites at once: it must have been read by then."""
    if n > 2:  # two have a core each
        _claim_cores()
        _share_cores()
    with Communicator() as comm:
        data, gathered = np.empty(count, np.float32), np.empty(n * count, np.float32)
        block = np.empty(count, np.float32)
        for turn in range(num_turns):
            of_all = [_numbers(peer, turn, count) for peer in range(n)]
            total = _total(n, turn, count)
            root = turn % n

            data[:] = of_all[rank]
            comm.all_reduce(data)
            np.testing.assert_array_equal(data, total)

            data[:] = of_all[rank]
            comm.broadcast(data, root)
            np.testing.assert_array_equal(data, of_all[root])

            data[:] = of_all[rank]
            comm.reduce(data, root)
            if rank == root:
                np.testing.assert_array_equal(data, total)

            data[:] = of_all[rank]
            comm.all_gather(gathered, data)
            data[:] = -1
            np.testing.assert_array_equal(gathered, np.concatenate(of_all))

            gathered[:] = np.tile(of_all[rank], n)
            comm.reduce_scatter(block, gathered)
            np.testing.assert_array_equal(block, total)

            received = np.empty_like(gathered)
            comm.all_to_all(received, gathered)
            gathered[:] = -1
            np.testing.assert_array_equal(received, np.concatenate(of_all))
        return comm.statistics()["single_copies"]


@pytest.mark.parametrize("n", [2, 3])
def test_collectives_are_right_and_give_the_memory_back(n: int) -> None:
    counts = run_ranks(every_collective, n, LARGE, LARGE_TURNS)
    assert all(counts) or not _may_read_each_other(), counts


# float32: of 4 ranks, the first step goes by lane, and the second one by the board.
ON_THE_BOARD = 1 << 14


def reduce_into_two_buffers(rank: int, n: int, memory: str) -> None:
    with Communicator() as comm:
        make = hccl_py.empty if memory == "registered" else np.empty
        buffers = [make(ON_THE_BOARD, np.float32) for _ in range(2)]
        total = np.zeros(ON_THE_BOARD, np.float32)
        for turn in range(140):
            data, before = buffers[turn % 2], total
            total = _total(n, turn, ON_THE_BOARD)
            data[:] = _numbers(rank, turn, ON_THE_BOARD)
            comm.all_reduce(data)
            np.testing.assert_array_equal(data, total)
            if turn > 0:
                np.testing.assert_array_equal(buffers[(turn + 1) % 2], before)


@pytest.mark.parametrize("memory", ["ordinary", *by_night("calls", "registered")])
def test_nothing_is_written_into_the_buffer_of_an_earlier_call(memory: str) -> None:
    run_ranks(reduce_into_two_buffers, 4, memory)


def transfer(rank: int, n: int, hides: bool) -> list[int]:
    """Both ranks send at once, and each overwrites what it has sent."""
    if hides and rank == 1:
        _hide()
    peer = 1 - rank
    found = []
    with Communicator() as comm:
        for turn, count in enumerate([1 << 15, LARGE, LARGE // 2, 3 * LARGE]):
            given, received = _numbers(rank, turn, count), np.empty(count, np.float32)
            sending = comm.nonblocking.send(given, peer)
            comm.recv(received, peer)
            sending.wait()
            given[:] = -1
            np.testing.assert_array_equal(received, _numbers(peer, turn, count))
            found.append(comm.statistics()["single_copies"])
    return found


@pytest.mark.parametrize("hides", [False, True])
def test_long_transfers_are_right_whether_or_not_ranks_read_each_other(hides: bool) -> None:
    counts = run_ranks(transfer, 2, hides)
    assert all(few == [0, 0, 0] for *few, _ in counts), "less than 8 MiB goes by slots"
    assert all(many for *_, many in counts) == (not hides and _may_read_each_other()), counts


def survive(rank: int, n: int, victim: int) -> str:
    _share_cores()
    comm = Communicator(timeout_s=20)
    pids = Pids(comm)
    given, received = np.zeros(n * LARGE, np.float32), np.zeros(n * LARGE, np.float32)
    try:
        comm.all_to_all(received, given)
        if rank == 0:
            comm.nonblocking.all_to_all(received, given)
            os.kill(pids[victim], signal.SIGKILL)
        while True:
            comm.all_to_all(received, given)
    except PeerLostError as error:
        return str(error)
    finally:
        comm.close()


def test_rank_that_is_killed_while_it_is_read_is_named() -> None:
    first, second, _ = run_ranks(survive, 3, 2, victims=[2])
    assert "rank 2" in first
    assert "rank 2" in second
