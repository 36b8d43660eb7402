"""What ranks see when one of them dies, stops, leaves, is interrupted, or calls something else.

Ranks are processes; each test's function at module level is what every rank runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import RanksFailed, run_ranks
from thread_ranks import ThreadRanks, wait_until

from hccl_py import (
    AbortedError,
    CollectiveTimeoutError,
    Communicator,
    CommunicatorError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ReduceOp,
)
from hccl_py.transport.arena import arena_of_this_process

# At once; the rest is for a machine that has other things to do.
NOTICE_S = 2.0

layouts = pytest.mark.parametrize("nodes", [1, 2], ids=["one node", "two nodes"])


def on_nodes(nodes: int) -> Callable[[int], dict[str, str]]:
    """Spread four ranks over emulated nodes."""
    return lambda rank: {"HCCL_NODE_ID": str(rank * nodes // 4)}


def _stops_at(process: int, state: str) -> bool:
    stat = Path(f"/proc/{process}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == state


class Pids:
    """Process ids of all ranks, exchanged through a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._pids = np.zeros(comm.world_size, np.int64)
        comm.all_gather(self._pids, np.array([os.getpid()]))

    def __getitem__(self, rank: int) -> int:
        return int(self._pids[rank])


def _loop_until_failure(comm: Communicator, data: np.ndarray[Any, Any]) -> CommunicatorError:
    try:
        while True:
            comm.all_reduce(data)
    except CommunicatorError as error:
        return error


# ------------------------------------------------------------------------------ death


def one_is_killed(rank: int, world_size: int, folder: str) -> tuple[float, str, int | None, str]:
    comm = Communicator()
    victim = 2
    pid = Pids(comm)[victim]
    data = np.ones(1 << 20, np.float32)
    if rank == victim:

        def die() -> None:
            wait_until(lambda: comm.statistics()["collectives"] > 10, "a few collectives")
            Path(folder, "died").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=die).start()
    error = _loop_until_failure(comm, data)
    noticed = time.monotonic()
    assert f"pid {pid}" in str(error), error
    again: CommunicatorError | None = None
    try:
        comm.barrier()
    except CommunicatorError as later:
        again = later
    comm.close()
    died = float(Path(folder, "died").read_text())
    return noticed - died, str(error), error.rank, f"{type(error).__name__} {again}"


@layouts
def test_killed_rank_is_named_by_all_at_once(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_surviving, 4, str(tmp_path), env=on_nodes(nodes))
    assert str(caught.value).startswith("1 of 4 ranks failed"), caught.value
    assert "rank 2: ended without a word" in str(caught.value)
    stories = sorted(tmp_path.glob("story-*"))
    assert [story.name for story in stories] == ["story-0", "story-1", "story-3"]
    for story in stories:
        seconds, culprit, kind, message, again = story.read_text().split("\n")
        assert float(seconds) < NOTICE_S
        assert (culprit, kind) == ("2", "PeerLostError")
        assert "rank 2 (host" in message
        assert "died: its connections closed without a goodbye" in message
        assert "all_reduce(sum, float32[1048576]) number" in message
        # Later calls raise the first cause, not a vaguer one.
        assert again == message


def _surviving(rank: int, world_size: int, folder: str) -> None:
    seconds, message, culprit, again = one_is_killed(rank, world_size, folder)
    kind, _, again = again.partition(" ")
    Path(folder, f"story-{rank}").write_text(f"{seconds}\n{culprit}\n{kind}\n{message}\n{again}")


def killed_with_a_child(rank: int, world_size: int) -> None:
    comm = Communicator()
    pids = Pids(comm)
    if rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(2 * NOTICE_S)  # holds copies of whatever its parent had open
            os._exit(0)
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    # Rank 1 may be dead before its last message is read: then the first barrier tells.
    with pytest.raises(PeerLostError):
        comm.barrier()
        wait_until(lambda: not _alive(pids[1]), "rank 1 dies")
        began = time.monotonic()
        comm.barrier()
    assert time.monotonic() - began < NOTICE_S


def _alive(pid: int) -> bool:
    try:
        return not _stops_at(pid, "Z")
    except FileNotFoundError:
        return False


@layouts
def test_killed_rank_with_a_forked_child_is_noticed_at_once(nodes: int) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(killed_with_a_child, 2, env=lambda rank: {"HCCL_NODE_ID": str(rank % nodes)})
    assert str(caught.value).startswith("1 of 2 ranks failed"), caught.value
    assert "rank 1: ended without a word" in str(caught.value)


# ------------------------------------------------------------------------------ silence


def one_is_stopped(rank: int, world_size: int) -> tuple[float, str, int | None] | None:
    comm = Communicator()
    pids = Pids(comm)
    comm.barrier()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
        return None
    wait_until(lambda: _stops_at(pids[3], "T"), "rank 3 stops")
    began = time.monotonic()
    try:
        comm.all_reduce(np.ones(100_000, np.float32), timeout_s=1.0)
        raise AssertionError("rank 3 is asleep")
    except CollectiveTimeoutError as error:
        result = time.monotonic() - began, str(error), error.rank
    # Give the others the time to reach their own deadline, then wake the sleeper.
    _meet_without_communicator(pids, rank, [0, 1, 2])
    if rank == 0:
        os.kill(pids[3], signal.SIGCONT)
    return result


def _meet_without_communicator(pids: Pids, rank: int, ranks: list[int]) -> None:
    folder = Path(os.environ["TEST_FOLDER"])
    (folder / str(rank)).touch()
    wait_until(lambda: all((folder / str(one)).exists() for one in ranks), "ranks meet")


@layouts
def test_stopped_rank_is_named_when_the_time_is_up(tmp_path: Path, nodes: int) -> None:
    def env(rank: int) -> dict[str, str]:
        return {**on_nodes(nodes)(rank), "TEST_FOLDER": str(tmp_path)}

    *others, stopped = run_ranks(one_is_stopped, 4, env=env)
    assert stopped is None
    for seconds, message, culprit in others:
        assert 0.7 < seconds < 1.3, message
        assert "all_reduce(sum, float32[100000]) number" in message
        assert "Timed out" in message
        # With two nodes the first to give up may wait for a rank that itself waits for rank 3.
        assert culprit == 3 or (nodes == 2 and culprit == 2)
        assert f"waiting for rank {culprit}" in message
    assert any(abs(seconds - 1.0) < 0.1 and "after 1 s" in text for seconds, text, _ in others)


# ------------------------------------------------------------------------------ Ctrl-C


def one_is_interrupted(rank: int, world_size: int) -> tuple[float, str, int | None]:
    comm = Communicator()
    pids = Pids(comm)
    began = 0.0
    if rank == 0:
        slept = comm.statistics()["sleeps"]

        def interrupt() -> None:
            wait_until(
                lambda: comm.statistics()["sleeps"] > slept and _asleep(pids[0]),
                "rank 0 is blocked in the call",
            )
            nonlocal began
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            comm.all_reduce(np.ones(10))
        except KeyboardInterrupt:
            took = time.monotonic() - began
            with pytest.raises(AbortedError, match="signal") as caught:
                comm.barrier()
            return took, str(caught.value), caught.value.rank
        raise AssertionError("not interrupted")
    if rank == 1:
        with pytest.raises(AbortedError) as caught:
            comm.recv(np.zeros(1), 2)  # in another call altogether
        return 0.0, str(caught.value), caught.value.rank
    with pytest.raises(AbortedError) as caught:
        comm.recv(np.zeros(1), 1)
    return 0.0, str(caught.value), caught.value.rank


def _asleep(pid: int) -> bool:
    """Whether the main thread has slept for a while."""

    def switches() -> str:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    return all(switches() == "S" for _ in range(20))


@pytest.mark.parametrize("nodes", [1, 3])
def test_interrupt_ends_the_call_at_once_everywhere(nodes: int) -> None:
    results = run_ranks(
        one_is_interrupted, 3, env=lambda rank: {"HCCL_NODE_ID": str(rank * nodes // 3)}
    )
    assert results[0][0] < 0.5
    for _, message, culprit in results:
        assert culprit == 0
        assert "aborted by rank 0 (host" in message
        assert "a signal interrupted the call half-way" in message


def interrupted_in_the_background(rank: int, world_size: int) -> bool:
    """The blocking call lines up behind another thread's: the signal still counts."""
    comm = Communicator()
    pids = Pids(comm)
    if rank == 1:
        with pytest.raises(AbortedError, match="aborted by rank 0"):
            comm.recv(np.zeros(1), 0)
        return True

    def drive() -> None:
        with pytest.raises(AbortedError):
            comm.all_reduce(np.ones(10))

    driver = threading.Thread(target=drive)
    driver.start()
    wait_until(lambda: comm.statistics()["sleeps"] > 2, "the other thread drives")

    def interrupt() -> None:
        wait_until(lambda: _asleep(pids[0]), "the main thread waits")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        comm.all_reduce(np.ones(10))
    except KeyboardInterrupt:
        # Its buffers are gone now, so nothing may go on with them.
        driver.join(NOTICE_S)
        return not driver.is_alive()
    return False


def test_interrupt_of_a_call_that_another_thread_drives() -> None:
    assert run_ranks(interrupted_in_the_background, 2) == [True, True]


# ------------------------------------------------------------------------------ leaving


def one_leaves(rank: int, world_size: int) -> str | None:
    comm = Communicator()
    comm.barrier()
    if rank == 1:
        comm.barrier()
        comm.close()
        return None
    # A rank that is still in the barrier may hear from one that is already past it.
    with pytest.raises(PeerLostError) as caught:
        comm.barrier()
        comm.all_reduce(np.ones(5))
    assert caught.value.rank == 1
    return str(caught.value)


@layouts
def test_clean_leave_says_after_which_collective(nodes: int) -> None:
    results = run_ranks(one_leaves, 4, env=on_nodes(nodes))
    for message in results[:1] + results[2:]:
        assert "left after collective 2" in message
        assert "rank 1 (host" in message


def leaves_after_last(rank: int, world_size: int) -> int:
    """Nobody who still has to read what the leaver sent is disturbed by its goodbye."""
    for _ in range(20):
        comm = Communicator()
        data = np.full(200_000, rank)
        comm.all_reduce(data)
        if rank == 0:
            comm.send(data, 1)
        if rank == 1:
            comm.recv(data, 0)
        comm.close()
    return int(data[-1])


@layouts
def test_leaving_after_the_last_call_disturbs_nobody(nodes: int) -> None:
    assert run_ranks(leaves_after_last, 4, env=on_nodes(nodes)) == [6] * 4


# ------------------------------------------------------------------------------ mismatch


def _float32(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


MISMATCHES: dict[str, tuple[Callable[[Communicator], Any], str, Callable[[Communicator], Any], str]]
MISMATCHES = {
    "collective": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.broadcast(_float32(9), 0),
        "broadcast(src=0, float32[9]) as number 1",
    ),
    "dtype": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.all_reduce(np.ones(9, np.int32)),
        "all_reduce(sum, int32[9]) as number 1",
    ),
    "op": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.all_reduce(_float32(9), ReduceOp.MAX),
        "all_reduce(max, float32[9]) as number 1",
    ),
    "count": (
        lambda c: c.all_reduce(_float32(300_000)),
        "all_reduce(sum, float32[300000]) number 1",
        lambda c: c.all_reduce(_float32(300_001)),
        "all_reduce(sum, float32[300001]) as number 1",
    ),
    "large count": (
        lambda c: c.all_reduce(np.ones(4_000_000, np.uint8)),
        "all_reduce(sum, uint8[4000000]); all ranks must",
        lambda c: c.all_reduce(np.ones(4_000_001, np.uint8)),
        "all_reduce(sum, uint8[4000001]) as number 1",
    ),
    "block": (
        lambda c: c.all_gather(_float32(4), _float32(2)),
        "all_gather(float32[4 in all]) number 1",
        lambda c: c.all_gather(_float32(6), _float32(3)),
        "all_gather(float32[6 in all]) as number 1",
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_different_calls_are_named_the_same_on_both_sides(nodes: str, what: str) -> None:
    one, one_text, other, other_text = MISMATCHES[what]
    with ThreadRanks(nodes) as ranks:
        errors = ranks.failures(lambda comm: (other if comm.rank else one)(comm))
        for error in errors:
            assert isinstance(error, MismatchError), error
            assert one_text in str(error)
            # Of two groups as large as each other, the one without rank 0 is to blame.
            assert f"rank 1 called {other_text}, rank 0 called " in str(error)
            assert (error.rank, error.cause, error.sequence) == (1, "mismatch", 1)
        assert str(errors[0]) == str(errors[1])
        later = ranks.failures(lambda comm: comm.barrier())
        assert [str(error) for error in later] == [str(error) for error in errors]


def test_different_roots_are_named() -> None:
    with ThreadRanks("aaa") as ranks:
        # Long enough that every rank has a part in it: a short one is sent, and done.
        for error in ranks.failures(lambda c: c.reduce(np.ones(9000), 0 if c.rank else 1)):
            assert isinstance(error, MismatchError), error
            assert "reduce(dst=0, sum, float64[9000])" in str(error)
            assert "reduce(dst=1, sum, float64[9000])" in str(error)


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_all_to_all_of_different_lengths_is_a_mismatch(nodes: str) -> None:
    def exchange(comm: Communicator) -> None:
        mine = _float32(3)
        theirs = _float32(5 if comm.rank else 4)
        blocks = [mine, theirs] if comm.rank == 0 else [theirs, mine]
        comm.all_to_all([one.copy() for one in blocks], blocks)

    with ThreadRanks(nodes) as ranks:
        for error in ranks.failures(exchange):
            assert isinstance(error, MismatchError), error
            assert "all_to_all" in str(error)


# ------------------------------------------------------------------------------ abort, close


@pytest.mark.parametrize("nodes", ["aaa", "aab"])
def test_abort_from_another_thread_ends_all(nodes: str) -> None:
    with ThreadRanks(nodes) as ranks:
        first = ranks.communicators[0]
        calls = ranks.start(lambda comm: comm.recv(np.zeros(1), (comm.rank + 1) % 3))
        wait_until(lambda: first.statistics()["sleeps"] > 0, "rank 0 waits")
        first.abort("the user pressed stop")
        for call in calls:
            error = call.exception(NOTICE_S)
            assert isinstance(error, AbortedError)
            assert "aborted by rank 0 (host" in str(error)
            assert "the user pressed stop" in str(error)
            assert error.rank == 0
        for error in ranks.failures(lambda comm: comm.nonblocking.barrier()):
            assert "the user pressed stop" in str(error)


def test_close_from_another_thread_ends_calls() -> None:
    with ThreadRanks("aa") as ranks:
        first = ranks.communicators[0]
        call = ranks.start(lambda comm: comm.recv(np.zeros(1), 1 - comm.rank))[0]
        wait_until(lambda: first.statistics()["sleeps"] > 0, "rank 0 waits")
        first.close()
        assert isinstance(call.exception(NOTICE_S), AbortedError)


def test_failed_works_tell_why_without_being_waited_for() -> None:
    with ThreadRanks("aa") as ranks:
        first = ranks.communicators[0]
        works = [first.nonblocking.all_reduce(np.ones(5)) for _ in range(3)]
        first.abort("enough")
        for work in works:
            wait_until(work.done, "the work ends")
            assert isinstance(work.exception(), AbortedError)
            with pytest.raises(AbortedError, match="enough"):
                work.wait()


# ------------------------------------------------------------------------------ leftovers


def _leftovers() -> tuple[set[str], int, int]:
    descriptors = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            descriptors.add(os.readlink(f"/proc/self/fd/{fd}") + f" {fd}")
    maps = Path("/proc/self/maps").read_text()
    # Registered memory is the process's, not a communicator's.
    mappings = maps.count("memfd:") - maps.count("memfd:hccl-arena")
    return descriptors, mappings, len(os.listdir("/proc/self/task"))


def _no_thread_of_python() -> bool:
    return not any(thread.name.startswith("hccl-") for thread in threading.enumerate())


def closes(rank: int, world_size: int, fails: bool) -> None:
    def use(comm: Communicator) -> None:
        comm.nonblocking.all_reduce(np.ones(100_000)).wait()
        comm.barrier()

    arena_of_this_process()  # stays, as the progress thread does
    at_first = _leftovers()
    with ThreadRanks("aab") as ranks:  # the process's one progress thread starts here
        ranks.run(use)
    wait_until(lambda: _leftovers()[1] <= at_first[1], "the progress thread lets go")
    wait_until(_no_thread_of_python, "the flight recorder's thread ends")
    before = _leftovers()
    with ThreadRanks("aab") as ranks:
        ranks.run(use)
        if fails:
            ranks.communicators[1].abort("on purpose")
            ranks.failures(lambda comm: comm.barrier())
        assert _leftovers()[1] > before[1]
        for comm in ranks.communicators:
            comm.close()
        # The communicators are still there, their resources are not.
        wait_until(lambda: _leftovers()[1] <= before[1], "the progress thread lets go")
        wait_until(_no_thread_of_python, "the flight recorder's thread ends")
        descriptors, _, _ = _leftovers()
        assert descriptors == before[0], descriptors ^ before[0]
    wait_until(lambda: _leftovers()[2] <= before[2], "threads end")


@pytest.mark.parametrize("fails", [False, True])
def test_close_leaves_no_descriptor_mapping_or_thread(fails: bool) -> None:
    # In a process of its own: what earlier tests left would go meanwhile.
    run_ranks(closes, 1, fails)


# ------------------------------------------------------------------------------ fork, exit


def forks(rank: int, world_size: int) -> int:
    comm = Communicator()
    comm.nonblocking.barrier().wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                lambda: comm.all_reduce(np.ones(1)),
                lambda: comm.nonblocking.barrier(),
                comm.statistics,
            ):
                with pytest.raises(InvalidArgumentError, match="was forked from a rank"):
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
        kept += [comm.nonblocking.all_reduce(np.ones(300_000)) for _ in range(3) if rank == 0]
        globals()["kept"] += kept
        comm.nonblocking.recv(np.ones(10), None, 10)  # dropped
    return True


@pytest.mark.parametrize("in_flight", [False, True])
def test_exit_without_close_is_clean(in_flight: bool) -> None:
    assert run_ranks(ends_without_close, 2, in_flight) == [True, True]
