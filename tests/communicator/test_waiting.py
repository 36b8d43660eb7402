"""What a rank takes of the cores that ranks share: while it waits, and to be in a small call."""

from __future__ import annotations

import os
import resource
import time

import numpy as np
import pytest
from quiet_clock import HANG_S
from ranks import run_ranks

from hccl_py import Communicator

LATE_S = 2.0
MOST_S = 0.01 + 0.02 * LATE_S
"""Of a core, for a wait of LATE_S: 10 ms in full, and 2 % of the rest."""
ROUNDS = 3
"""On a busy machine a rank wakes on a cold core, and a wait costs more: one round is no proof. A
rank that keeps its core computes all of LATE_S in every round."""
CALLS = 200
BLOCKS = 10
ALONE = 0.95
"""Of the cores, what ranks that nobody disturbs compute: those that wait yield, and never sleep."""


def wait_for_the_last(rank: int, n: int) -> float:
    """Return what this process computed while the last rank was late: all its threads."""
    with Communicator(timeout_s=HANG_S) as comm:
        for _ in range(CALLS):
            comm.barrier()
        if rank == n - 1:
            time.sleep(LATE_S)
        before = time.process_time()
        comm.barrier()
        return time.process_time() - before


@pytest.mark.parametrize("n", [2, pytest.param(8, marks=pytest.mark.nightly("calls"))])
def test_a_rank_that_waits_for_long_leaves_its_core(n: int) -> None:
    for _ in range(ROUNDS):
        used_s = run_ranks(wait_for_the_last, n)
        if max(used_s) < MOST_S:
            return
    pytest.fail(f"in each of {ROUNDS} rounds a rank computed {MOST_S:g} s or more: {used_s}")


def count_turns(rank: int, n: int) -> float:
    """Return how often this rank lost its core and got it back, for each all_reduce.

    Other programs take part in the turns. So a block of calls counts only if these ranks had the
    cores to themselves, which all of them see alike.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    turns: list[float] = []
    deadline = time.monotonic() + HANG_S
    with Communicator(timeout_s=HANG_S) as comm:
        data = np.ones(1, np.float32)
        while len(turns) < BLOCKS:
            comm.barrier()
            before, begin = resource.getrusage(resource.RUSAGE_THREAD), time.monotonic()
            computed = time.thread_time()
            for _ in range(CALLS):
                comm.all_reduce(data)
            computed = time.thread_time() - computed
            lasted = time.monotonic() - begin
            after = resource.getrusage(resource.RUSAGE_THREAD)
            shares = np.array([computed / lasted / len(cores), float(begin > deadline)])
            comm.all_reduce(shares)
            assert shares[1] == 0, f"other programs held the cores for {HANG_S:g} s"
            if shares[0] > ALONE:
                lost = after.ru_nivcsw - before.ru_nivcsw + after.ru_nvcsw - before.ru_nvcsw
                turns.append(lost / CALLS)
    return sorted(turns)[BLOCKS // 2]


@pytest.mark.nightly("calls")  # needs two cores to itself
def test_a_small_all_reduce_of_ranks_that_share_cores_takes_each_rank_two_turns_at_most() -> None:
    turns = run_ranks(count_turns, 8)
    assert max(turns) <= 2, turns
