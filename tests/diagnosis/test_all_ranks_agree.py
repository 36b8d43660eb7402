"""All survivors raise the same error, word for word, whoever it is that fails: real processes."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from injections import write_mark
from namespaces import NEEDS_NFT, TWO_HOSTS, Hosts, firewall
from quiet_clock import Moment
from rank_processes import kill_at_one_moment, on_nodes, state_of, wait_for_every_report
from ranks import run_ranks
from thread_ranks import wait_until
from tiers import by_night

from hccl_py import CollectiveTimeoutError, Communicator, CommunicatorError

NOTICE_S = 2.0
TIMEOUT_S = 1.0
CUT_TIMEOUT_S = 4.0  # longer than it takes until a host is known to answer nothing
FIELDS = tuple(CommunicatorError.__annotations__)

Story = tuple[str, tuple[Any, ...], Moment]
"""Text and attributes of the error, and when it was raised."""

nodes = pytest.mark.parametrize("nodes", [2, *by_night("faults", 1)])


def story(error: BaseException) -> Story:
    return str(error), tuple(getattr(error, name) for name in FIELDS), Moment.now()


def same(stories: list[Story | None]) -> tuple[str, SimpleNamespace]:
    """Return what all survivors tell; they have to tell it within `NOTICE_S` of each other."""
    told = [one for one in stories if one is not None]
    for text, attributes, _ in told:
        assert (text, attributes) == told[0][:2]
    times = sorted((raised for _, _, raised in told), key=lambda moment: moment.s)
    assert times[-1] - times[0] < NOTICE_S
    return told[0][0], SimpleNamespace(**dict(zip(FIELDS, told[0][1], strict=True)))


def loops(comm: Communicator, before: Callable[[int], object]) -> Story:
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
    """Victims do not come to call 20; the others wait in it."""
    wait_for_every_report()

    def be_killed(number: int) -> None:
        if number != 20:
            return
        if rank in victims:
            write_mark(folder / str(rank), str(os.getpid()))
            signal.pause()
        work = comm.nonblocking.all_reduce(np.ones(1000, np.float32))
        write_mark(folder / str(rank), str(os.getpid()))
        work.wait()

    with Communicator() as comm:
        return loops(comm, be_killed)


def kill_in_call_20(
    victims: list[int], folder: Path, env: Any = None, hosts: Hosts | None = None
) -> list[Story | None]:
    """Return what the ranks tell."""

    def kill() -> None:
        marks = [folder / str(rank) for rank in range(4)]
        wait_until(lambda: all(mark.exists() for mark in marks), "all ranks are in call 20")
        kill_at_one_moment([int(mark.read_text()) for mark in marks], victims)

    with ThreadPoolExecutor(1) as thread:
        killing = thread.submit(kill)
        told = run_ranks(killed, 4, victims, folder, env=env, hosts=hosts, victims=victims)
        killing.result()
    return told


@pytest.mark.parametrize(
    ("nodes", "victims"),
    [
        (1, [0]),
        (2, [2]),
        (2, [0, 2]),
        *by_night("faults", (2, [0]), (1, [2]), (1, [0, 2])),
    ],
)
def test_killed_ranks_are_named_alike_by_all(
    nodes: int, victims: list[int], tmp_path: Path
) -> None:
    text, blame = same(kill_in_call_20(victims, tmp_path, on_nodes(nodes)))
    assert (blame.rank, blame.cause) == (victims[0], "died")
    assert blame.collective == "all_reduce(sum, float32[1000])"
    assert blame.sequence == 20
    assert text.startswith(f"{blame.collective} number 20: rank")
    assert f"{victims[0]} (host {blame.host}, pid {blame.pid})" in text
    assert all(f"{victim} (host" in text for victim in victims)


def all_came(folder: Path, number: int) -> None:
    """Wait until so many ranks have left their mark."""
    wait_until(lambda: len(list(folder.iterdir())) == number, f"{number} ranks are here")


def idle_and_busy(rank: int, world_size: int, folder: Path) -> Story:
    """Rank 1 is killed; rank 0 waits in a call, rank 2 in none, rank 3 computes all the time."""
    comm = Communicator()
    comm.barrier()
    (folder / str(rank)).touch()
    if rank == 0:
        return loops(comm, lambda number: None)
    if rank == 1:
        all_came(folder, world_size)  # else the error would be that of somebody's barrier
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        wait_until(comm._state.core.failed, "an idle rank hears of it")
    else:
        while not comm._state.core.failed():
            sum(range(100_000))
    called = Moment.now()
    told = loops(comm, lambda number: None)
    assert told[2] - called < NOTICE_S / 2
    comm.close()
    return told


def test_idle_and_busy_ranks_hear_of_a_death(tmp_path: Path) -> None:
    _, blame = same(run_ranks(idle_and_busy, 4, tmp_path, victims=[1]))
    assert (blame.rank, blame.cause) == (1, "died")


@TWO_HOSTS
def test_killed_coordinator_between_hosts_is_named_alike_by_all(tmp_path: Path) -> None:
    with Hosts(rates_mbit=[1000]) as hosts:
        _, blame = same(kill_in_call_20([0], tmp_path, hosts=hosts))
    assert (blame.rank, blame.cause) == (0, "died")


def cut_off(rank: int, world_size: int, hosts: Hosts, drops: tuple[int, ...], call: str) -> Story:
    """Both hosts are cut off while all ranks call; with `gather` rank 0 only receives."""
    with Communicator(timeout_s=CUT_TIMEOUT_S) as comm:
        comm.barrier()
        if rank == 0:
            for host in drops:
                firewall(hosts, host, 'iifname "link0" drop')
        with pytest.raises(CollectiveTimeoutError) as raised:
            while True:
                if call == "gather":
                    gathered = np.zeros((world_size, 9)) if rank == 0 else None
                    comm.gather(gathered, np.ones(9), root=0)
                else:
                    comm.broadcast(np.ones(9), root=0)
    return story(raised.value)


@TWO_HOSTS
@NEEDS_NFT
@pytest.mark.parametrize(
    ("transport", "drops", "call"),
    [
        ("tcp", (0, 1), "gather"),
        ("tcp", (0,), "gather"),
        ("tcp", (1,), "broadcast"),
        ("auto", (0, 1), "broadcast"),
        ("verbs_over_tcp", (0, 1), "broadcast"),
        ("zmq", (0, 1), "gather"),
    ],
)
def test_host_that_is_cut_off_has_one_cause_for_all_its_ranks(
    transport: str, drops: tuple[int, ...], call: str
) -> None:
    with Hosts() as hosts:
        env = {"HCCL_TRANSPORT": transport}
        told: list[Story | None] = run_ranks(cut_off, 4, hosts, drops, call, hosts=hosts, env=env)
    for here, there in (((0, 1), (2, 3)), ((2, 3), (0, 1))):
        text, blame = same([told[rank] for rank in here])
        assert (blame.rank, blame.cause) == (there[0], "timed out")
        for rank in there:
            assert re.search(rf"rank {rank} \([^)]*\) is out of reach: ", text), text
        assert set(re.findall(r"to rank (\d)", text)) <= {str(rank) for rank in there}, text


def stopped(rank: int, world_size: int, folder: Path) -> Story | None:
    """Rank 0 is stopped; the last rank comes when the others have, and its time is up first."""
    comm = Communicator()
    pids = np.zeros(world_size, np.int64)
    comm.all_gather(pids, np.array([os.getpid()]))
    last = world_size - 1
    if rank == 0:
        all_came(folder, last - 1)
        os.kill(os.getpid(), signal.SIGSTOP)
        return loops(comm, lambda number: None)  # woken by the last rank, it hears the same
    if rank == last:
        wait_until(lambda: state_of(int(pids[0])) == "T", "rank 0 is stopped")
        comm.timeout_s = TIMEOUT_S
    began = Moment.now()
    work = comm.nonblocking.all_reduce(np.ones(1000, np.float32))
    if rank != last:
        (folder / str(rank)).touch()
    with pytest.raises(CommunicatorError) as raised:
        work.wait()
    told = story(raised.value)
    if rank != last:
        (folder / f"{rank} raised").touch()
    else:
        assert time.monotonic() - began.s > 0.9 * TIMEOUT_S
        assert told[2] - began < 1.5 * TIMEOUT_S
        all_came(folder, 2 * (last - 1))  # with rank 0 a call that has not failed yet would end
        os.kill(int(pids[0]), signal.SIGCONT)
    comm.close()
    return told


@nodes
def test_stopped_coordinator_is_named_when_the_time_is_up(nodes: int, tmp_path: Path) -> None:
    results = run_ranks(stopped, 4, tmp_path, env=on_nodes(nodes))
    text, blame = same(results)
    assert (blame.rank, blame.cause) == (0, "timed out")
    assert f"Timed out after {TIMEOUT_S:g} s: rank 0 (host {blame.host}, pid {blame.pid})" in text
    if nodes == 1:  # else no rank of its node is left to look
        assert f"pid {blame.pid}) is stopped (kill -CONT {blame.pid} " in text
    # A rank that has to wait for a core may not answer either, in so short a time.
    assert re.search(r"ranks? [1-3](, [23])* ha(s|ve) arrived", text), text
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


def ends_by_exception(rank: int, world_size: int, first_is_over: Path) -> Story:
    """Run as a script: only there the interpreter ends by an exception."""
    if rank == 0:
        with Communicator() as comm:
            return loops(comm, lambda number: number == 2 and first_is_over.touch())
    code = (
        "import os, time\n"
        "import numpy as np, hccl_py\n"
        "comm = hccl_py.Communicator()\n"
        "comm.all_reduce(np.ones(1000, np.float32))\n"
        f"while not os.path.exists({str(first_is_over)!r}):\n"
        "    time.sleep(0.001)\n"
        "raise KeyError('no such thing')\n"
    )
    return os.execv(sys.executable, [sys.executable, "-c", code])


@pytest.mark.nightly("faults")
def test_exception_that_ends_the_interpreter_is_told_to_all(tmp_path: Path) -> None:
    text, blame = same(run_ranks(ends_by_exception, 2, tmp_path / "first is over", victims=[1]))
    assert (blame.rank, blame.cause, blame.sequence) == (1, "uncaught exception", 2)
    assert "failed: uncaught KeyError: 'no such thing'" in text
