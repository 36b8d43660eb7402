"""All survivors raise the same error, word for word, whoever it is that fails: real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from namespaces import TWO_HOSTS, Hosts
from rank_processes import on_nodes
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator, CommunicatorError

NOTICE_S = 2.0
TIMEOUT_S = 1.0
FIELDS = tuple(CommunicatorError.__annotations__)

Story = tuple[str, tuple[Any, ...], float]
"""Text and attributes of the error, and when it was raised."""

nodes = pytest.mark.parametrize("nodes", [1, 2], ids=["one node", "two nodes"])


def story(error: BaseException) -> Story:
    return str(error), tuple(getattr(error, name) for name in FIELDS), time.monotonic()


def same(stories: list[Story | None]) -> tuple[str, SimpleNamespace]:
    """Return what all survivors tell; they have to tell it within `NOTICE_S` of each other."""
    told = [one for one in stories if one is not None]
    for text, attributes, _ in told:
        assert (text, attributes) == told[0][:2]
    times = [raised_s for _, _, raised_s in told]
    assert max(times) - min(times) < NOTICE_S
    return told[0][0], SimpleNamespace(**dict(zip(FIELDS, told[0][1], strict=True)))


def loops(comm: Communicator, before: Callable[[int], None]) -> Story:
    """Reduce until it fails; `before` is called with the number of each call."""
    data = np.ones(1000, np.float32)
    try:
        for number in range(1, 1_000_000):
            before(number)
            comm.all_reduce(data)
    except CommunicatorError as error:
        told = story(error)
        with pytest.raises(CommunicatorError) as again:
            comm.barrier()
        assert story(again.value)[:2] == told[:2]
        return told
    raise AssertionError("nothing failed")


def killed(rank: int, world_size: int, victims: list[int], folder: Path) -> Story:
    pids = np.zeros(world_size, np.int64)

    def die(number: int) -> None:
        if number != 20 or rank not in victims:
            return
        (folder / str(rank)).touch()
        if rank == victims[0]:
            # One kills all, once the call before is over for all of them: a victim that
            # waited for a core would die in that call, or after the diagnosis.
            wait_until(lambda: len(list(folder.iterdir())) == len(victims), "all victims are here")
            for victim in reversed(victims):
                os.kill(int(pids[victim]), signal.SIGKILL)
        signal.pause()

    with Communicator() as comm:
        comm.all_gather(pids, np.array([os.getpid()]))
        return loops(comm, die)


@nodes
@pytest.mark.parametrize("victims", [[0], [2], [0, 2]], ids=str)
def test_killed_ranks_are_named_alike_by_all(
    nodes: int, victims: list[int], tmp_path: Path
) -> None:
    results = run_ranks(killed, 4, victims, tmp_path, env=on_nodes(nodes), victims=victims)
    text, blame = same(results)
    assert (blame.rank, blame.cause) == (victims[0], "died")
    assert blame.collective == "all_reduce(sum, float32[1000])"
    assert blame.sequence == 21
    assert text.startswith(f"{blame.collective} number 21: rank")
    assert f"{victims[0]} (host {blame.host}, pid {blame.pid})" in text
    assert all(f"{victim} (host" in text for victim in victims)


def idle_and_busy(rank: int, world_size: int) -> Story:
    """Rank 1 is killed; rank 0 waits in a call, rank 2 in none, rank 3 computes all the time."""
    comm = Communicator()
    comm.barrier()
    if rank == 0:
        return loops(comm, lambda number: None)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    if rank == 2:
        wait_until(lambda: bool(comm._state.core.failed()), "an idle rank hears of it", NOTICE_S)
    else:
        while time.monotonic() < began_s + NOTICE_S / 2:
            sum(range(100_000))
    called_s = time.monotonic()
    told = loops(comm, lambda number: None)
    assert told[2] - called_s < NOTICE_S / 2
    comm.close()
    return told


def test_idle_and_busy_ranks_hear_of_a_death() -> None:
    _, blame = same(run_ranks(idle_and_busy, 4, victims=[1]))
    assert (blame.rank, blame.cause) == (1, "died")


@TWO_HOSTS
def test_killed_coordinator_between_hosts_is_named_alike_by_all(tmp_path: Path) -> None:
    with Hosts(rates_mbit=[1000]) as hosts:
        _, blame = same(run_ranks(killed, 4, [0], tmp_path, hosts=hosts, victims=[0]))
    assert (blame.rank, blame.cause) == (0, "died")


def stopped(rank: int, world_size: int) -> Story | None:
    comm = Communicator(timeout_s=20)
    pids = np.zeros(world_size, np.int64)
    comm.all_gather(pids, np.array([os.getpid()]))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        # Woken by the last to fail: it hears the same.
        return loops(comm, lambda number: None)
    comm.timeout_s = TIMEOUT_S
    began_s = time.monotonic()
    told = loops(comm, lambda number: None)
    assert 0.9 * TIMEOUT_S < told[2] - began_s < 1.5 * TIMEOUT_S
    if rank == world_size - 1:
        os.kill(int(pids[0]), signal.SIGCONT)
    comm.close()
    return told


@nodes
def test_stopped_coordinator_is_named_when_the_time_is_up(nodes: int) -> None:
    results = run_ranks(stopped, 4, env=on_nodes(nodes))
    text, blame = same(results)
    assert (blame.rank, blame.cause) == (0, "timed out")
    assert f"Timed out after {TIMEOUT_S:g} s: rank 0 (host {blame.host}, pid {blame.pid})" in text
    assert "ranks 1, 2, 3 have arrived" in text
    assert "bytes moved, waiting for rank" in text


def raises(rank: int, world_size: int) -> Story:
    try:
        with Communicator() as comm:

            def fail(number: int) -> None:
                if number == 5 and rank == 1:
                    raise ValueError("a mistake\nof the user's")

            return loops(comm, fail)
    except ValueError as error:
        return story(CommunicatorError(str(error)))


@nodes
def test_exception_that_leaves_the_block_is_told_to_all(nodes: int) -> None:
    results = run_ranks(raises, 4, env=on_nodes(nodes))
    text, blame = same(results[:1] + results[2:])
    assert results[1][0] == "a mistake\nof the user's"
    assert (blame.rank, blame.cause) == (1, "uncaught exception")
    assert text.endswith("failed: uncaught ValueError: a mistake of the user's")


def ends_by_exception(rank: int, world_size: int) -> Story:
    """Run as a script: only there the interpreter ends by an exception."""
    if rank == 0:
        with Communicator() as comm:
            return loops(comm, lambda number: None)
    code = (
        "import numpy as np, hccl_py\n"
        "comm = hccl_py.Communicator()\n"
        "comm.all_reduce(np.ones(1000, np.float32))\n"
        "raise KeyError('no such thing')\n"
    )
    return os.execv(sys.executable, [sys.executable, "-c", code])


def test_exception_that_ends_the_interpreter_is_told_to_all() -> None:
    text, blame = same(run_ranks(ends_by_exception, 2, victims=[1]))
    assert (blame.rank, blame.cause, blame.sequence) == (1, "uncaught exception", 2)
    assert "failed: uncaught KeyError: 'no such thing'" in text
