"""The harness itself: results by rank, and failures, deaths and hangs that are told."""

import os
import signal
import threading
import time

import pytest
from ranks import RanksFailed, run_ranks


def whoami(rank: int, world_size: int, extra: str) -> tuple[int, int, str, str, str]:
    return rank, world_size, extra, os.environ["RANK"], os.environ["HCCL_NODE_ID"]


def test_run_ranks_function_returns_results_by_rank() -> None:
    results = run_ranks(whoami, 3, "x", env=lambda rank: {"HCCL_NODE_ID": f"n{rank}"})
    assert results == [(rank, 3, "x", str(rank), f"n{rank}") for rank in range(3)]


def one_fails(rank: int, world_size: int) -> None:
    if rank == 1:
        print("something printed")
        raise ValueError("the cause")
    threading.Event().wait(60)


def test_run_ranks_one_raises_ends_all_and_quotes_it() -> None:
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="the cause") as caught:
        run_ranks(one_fails, 2)
    assert time.monotonic() - began < 20
    assert "something printed" in str(caught.value)


def one_dies(rank: int, world_size: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_run_ranks_one_killed_is_named() -> None:
    with pytest.raises(RanksFailed, match="rank 0: ended without a word"):
        run_ranks(one_dies, 2)


def one_hangs(rank: int, world_size: int) -> None:
    if rank == 1:
        threading.Event().wait()


def test_run_ranks_one_hangs_shows_where() -> None:
    with pytest.raises(RanksFailed, match="one_hangs"):
        run_ranks(one_hangs, 2, timeout_s=2.0)


def dies_at_exit(rank: int, world_size: int) -> None:
    import atexit
    import multiprocessing.util

    assert atexit
    multiprocessing.util.Finalize(None, os._exit, args=(7,), exitpriority=100)


def test_run_ranks_exit_code_after_return_counts() -> None:
    with pytest.raises(RanksFailed, match="exit code 7"):
        run_ranks(dies_at_exit, 1)
