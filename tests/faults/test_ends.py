"""How a communicator ends: aborted, closed, left behind, forked, or with its process.

What ranks see of each other's failures stands in test_injections.py.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from leftovers import holdings, settled_holdings, wait_for_return
from quiet_clock import HANG_S, Moment
from rank_processes import Pids, is_alive, on_nodes
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until
from tiers import by_night

from hccl_py import AbortedError, Communicator, PeerLostError

NOTICE_S = 2.0


def clone() -> int:
    """Fork behind the back of the C library, as runtimes of other languages do."""
    return ctypes.CDLL(None).syscall(56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0)


FORKS = {"python": os.fork, "C library": lambda: ctypes.CDLL(None).fork(), "clone": clone}


def killed_with_a_child(rank: int, world_size: int, how: str) -> None:
    comm = Communicator()
    pids = Pids(comm)
    child = np.zeros(1, np.int64)
    if rank == 1:
        child[0] = FORKS[how]()
        if child[0] == 0:
            time.sleep(HANG_S)  # holds copies of whatever its parent had open
            os._exit(0)
    comm.broadcast(child, 1)
    if rank == 1:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    began = Moment.now()
    # Rank 1 may be dead before its last message is read: then the first barrier tells.
    with pytest.raises(PeerLostError):
        comm.barrier()
        wait_until(lambda: not is_alive(pids[1]), "rank 1 dies")
        began = Moment.now()
        comm.barrier()
    assert Moment.now() - began < NOTICE_S
    if rank == 0:
        assert is_alive(int(child[0]))
        os.kill(int(child[0]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "nodes", "world_size"),
    [
        ("python", 1, 2),
        ("C library", 2, 2),
        ("clone", 2, 4),  # the other rank of its node says so
        *by_night("faults", ("python", 2, 2), ("C library", 1, 2), ("clone", 1, 2)),
    ],
)
def test_killed_rank_with_a_forked_child_is_noticed_at_once(
    how: str, nodes: int, world_size: int
) -> None:
    env = on_nodes(nodes, world_size)
    run_ranks(killed_with_a_child, world_size, how, env=env, victims=[1])


def closes(rank: int, world_size: int, fails: bool) -> None:
    def use(comm: Communicator) -> None:
        comm.nonblocking.all_reduce(np.ones(100_000)).wait()
        comm.barrier()

    with ThreadRanks("aab") as ranks:  # the one progress thread and the arena stay
        ranks.run(use)
    wait_until(lambda: threading.active_count() == 1, "the flight recorder's thread ends")
    before = settled_holdings()
    with ThreadRanks("aab") as ranks:
        ranks.run(use)
        if fails:
            # Nobody keeps this work, and nobody makes the call with it.
            ranks.communicators[0].nonblocking.all_reduce(np.ones(10))
            ranks.communicators[1].abort("on purpose")
            ranks.failures(lambda comm: comm.barrier())
            ranks.failures(lambda comm: comm.recv(np.ones(1), 0))
        assert any(what.startswith("mapping") for what in holdings() - before)
        for comm in ranks.communicators:
            comm.close()
        # The communicators are still there, their resources are not.
        wait_until(
            lambda: all(what.startswith("thread") for what in holdings() - before),
            "the progress thread lets go",
        )
    assert not wait_for_return(before)


@pytest.mark.parametrize("fails", [False, True])
def test_close_leaves_no_descriptor_mapping_or_thread(fails: bool) -> None:
    # In a process of its own: what earlier tests left would go meanwhile.
    run_ranks(closes, 1, fails)


def forks(rank: int, world_size: int) -> int:
    comm = Communicator()
    comm.nonblocking.barrier().wait()
    comm.all_reduce(np.ones(1))  # a known call from now on
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: comm.all_reduce(np.ones(1)),
                lambda: comm.nonblocking.barrier(),
                comm.statistics,
            ):
                with pytest.raises(AbortedError, match="was forked from a rank"):
                    call()
            comm.close()
            with Communicator(None, 0, 1) as alone:
                alone.nonblocking.barrier().wait()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    data = np.full(100_000, rank + 1)
    comm.all_reduce(data)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    comm.nonblocking.all_reduce(data).wait()
    comm.close()
    return int(data[0])


@pytest.mark.parametrize("nodes", [1, 2])
def test_forked_child_is_told_and_its_parent_goes_on(nodes: int) -> None:
    results = run_ranks(forks, 2, env=lambda rank: {"HCCL_NODE_ID": str(rank % nodes)})
    assert results == [6, 6]


def ends_without_close(rank: int, world_size: int, in_flight: bool) -> bool:
    comm = Communicator()
    data = np.ones(300_000)
    comm.all_reduce(data)
    globals()["kept"] = [comm]  # alive until the interpreter is taken apart
    if in_flight:
        kept = [comm.nonblocking.recv(np.ones(10), None, 9)]
        with contextlib.suppress(PeerLostError):  # the other rank may have ended already
            kept += [comm.nonblocking.all_reduce(np.ones(300_000)) for _ in range(3) if rank == 0]
        globals()["kept"] += kept
        comm.nonblocking.recv(np.ones(10), None, 10)  # dropped
    return True


@pytest.mark.parametrize("in_flight", [False, True])
def test_exit_without_close_is_clean(in_flight: bool) -> None:
    assert run_ranks(ends_without_close, 2, in_flight) == [True, True]
