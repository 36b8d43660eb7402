"""What a rank takes of the cores that ranks share: while it waits, and to be in a small call.

HCCL_WAIT and `wait` choose it.
"""

import os
import resource
import time

import numpy as np
import pytest
from quiet_clock import HANG_S
from ranks import run_ranks
from stores import MemoryStore

from hccl_py import Communicator, InvalidArgumentError

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


@pytest.mark.parametrize(
    ("n", "way"),
    [
        (2, "balanced"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly("calls"))
            for case in ((8, "balanced"), (2, "idle"), (8, "idle"))
        ),
    ],
)
def test_a_rank_that_waits_for_long_leaves_its_core(n: int, way: str) -> None:
    for _ in range(ROUNDS):
        used_s = run_ranks(wait_for_the_last, n, env={"HCCL_WAIT": way})
        if max(used_s) < MOST_S:
            return
    pytest.fail(f"in each of {ROUNDS} rounds a rank computed {MOST_S:g} s or more: {used_s}")


def wait_by_each_way(rank: int, n: int) -> dict[str, tuple[int, float]]:
    """Return how often this rank slept in short waits by each way, and what a long one computed."""
    found = {}
    with Communicator(timeout_s=HANG_S) as comm:
        for way in ("spin", "balanced", "idle"):
            comm.wait = way
            comm.barrier()
            slept, before = comm.statistics()["sleeps"], time.process_time()
            for number in range(CALLS // 2):
                if rank == n - 1:
                    time.sleep(LATE_S if number == 0 else 1e-4)
                comm.barrier()
            found[way] = comm.statistics()["sleeps"] - slept, time.process_time() - before
    return found


def test_a_rank_sleeps_never_by_spin_and_in_each_wait_by_idle() -> None:
    first, _ = run_ranks(wait_by_each_way, 2)
    assert first["spin"][0] == 0
    assert first["spin"][1] > max(first["balanced"][1], first["idle"][1])
    assert first["idle"][0] >= CALLS // 4  # of CALLS / 2 waits: a rank may find the other there


@pytest.mark.parametrize("setting", ["idle", ""])
def test_way_to_wait_is_the_argument_else_the_setting_and_may_be_set(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_WAIT", setting)
    with Communicator(MemoryStore(HANG_S), 0, 1) as comm:
        assert comm.wait == (setting or "balanced")
    with Communicator(MemoryStore(HANG_S), 0, 1, wait="spin") as comm:
        with comm.subset([0], "part") as part:
            assert comm.wait == part.wait == "spin"
        comm.wait = "idle"
        assert comm.wait == "idle"
        with pytest.raises(InvalidArgumentError, match=r"^wait: expected spin or balanced or idle"):
            comm.wait = "often"
    with pytest.raises(InvalidArgumentError, match="wait: expected spin or balanced or idle"):
        Communicator(MemoryStore(HANG_S), 0, 1, wait="often")


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
