"""Going on with fewer ranks: after deaths, by request, twice, late, in a minority.

Where a rank dies it is a process, otherwise ranks are threads.
"""

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from leftovers import settled_holdings, wait_for_return
from quiet_clock import HANG_S, Moment
from rank_processes import on_nodes
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until
from tiers import by_night

from hccl_py import AbortedError, BootstrapError, Communicator, CommunicatorError
from hccl_py.transport.control.coordinator import Coordinator

RECOVERED_S = 0.5
"""From the error of a call to the end of the first call on the communicator of those left."""
SHRUNK_S = 5.0
"""For a shrink in which a rank dies."""

MORE = pytest.mark.nightly("faults")


def call_until_failure(comm: Communicator) -> Moment:
    """Return when it failed."""
    data = np.ones(1000, np.float32)
    with pytest.raises(CommunicatorError):
        while True:
            comm.all_reduce(data)
    return Moment.now()


def sum_of_ones(comm: Communicator) -> int:
    data = np.ones(1000, np.float32)
    comm.all_reduce(data)
    assert len(set(data)) == 1
    return int(data[0])


def die_during_calls(comm: Communicator, num_calls: int) -> None:
    """Have another thread kill this process after so many calls."""

    def die() -> None:
        wait_until(lambda: comm.statistics()["collectives"] > num_calls, "a few collectives")
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die).start()


def one_of_eight_dies(rank: int, world_size: int, victim: int) -> tuple[float, list[Any]]:
    comm = Communicator()
    sum_of_ones(comm)
    if rank == victim:
        die_during_calls(comm, 20)
    failed = call_until_failure(comm)
    with comm.shrink() as left:
        total = sum_of_ones(left)
        took_s = Moment.now() - failed
        found = [left.rank, left.world_size, left.name, left.old_ranks, total]
        with pytest.raises(AbortedError, match="the communicator is closed"):
            comm.barrier()
        return took_s, found


@pytest.mark.parametrize(
    ("nodes", "victim"),
    [
        (2, 3),
        *(pytest.param(*more, marks=MORE) for more in ((1, 0), (1, 3), (1, 7), (2, 0), (2, 7))),
    ],
)
def test_after_a_sigkill_of_one_of_eight_the_next_all_reduce_is_done_in_half_a_second(
    nodes: int, victim: int
) -> None:
    left = tuple(rank for rank in range(8) if rank != victim)
    results = run_ranks(one_of_eight_dies, 8, victim, env=on_nodes(nodes, 8), victims=[victim])
    for new_rank, rank in enumerate(left):
        took_s, found = results[rank]
        assert found == [new_rank, 7, "default/shrunk-1", left, 7]
        assert took_s < RECOVERED_S


def dies_between_calls(rank: int, world_size: int) -> tuple[float, int]:
    comm = Communicator()
    assert sum_of_ones(comm) == world_size
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    began = Moment.now()
    with comm.shrink(timeout_s=HANG_S) as left:
        return Moment.now() - began, sum_of_ones(left)


@pytest.mark.parametrize(("nodes", "n"), [(1, 2), (2, 2), (2, 3), (3, 3)])
def test_death_that_no_call_waits_for_is_found_by_shrink(nodes: int, n: int) -> None:
    results = run_ranks(dies_between_calls, n, env=on_nodes(nodes, n), victims=[0])
    for took_s, found in results[1:]:
        assert found == n - 1
        assert took_s < SHRUNK_S


def neighbour_dies_before_the_diagnosis(rank: int, world_size: int) -> tuple[float, int]:
    """Rank 3 dies; rank 2, alone on its node then, reports that and dies before rank 0 decides."""
    comm = Communicator()
    pids = np.empty(world_size, np.int64)
    comm.all_gather(pids, np.array([os.getpid()]))
    if rank == 3:
        die_during_calls(comm, 5)
    if rank == 0:
        core, decide, doomed = comm._state.require_engine(), Coordinator._decide, [pids[2]]

        def decide_later(self: Coordinator, now_s: float) -> None:
            if doomed:
                os.kill(doomed.pop(), signal.SIGKILL)
            core.poll()
            if 2 in {one.rank for one in core.ended_peers()}:
                decide(self, now_s)

        Coordinator._decide = decide_later  # type: ignore[method-assign]
    call_until_failure(comm)
    began = Moment.now()
    with comm.shrink() as left:
        return Moment.now() - began, sum_of_ones(left)


def test_rank_that_dies_between_its_report_and_the_diagnosis_is_not_awaited() -> None:
    function = neighbour_dies_before_the_diagnosis
    results = run_ranks(function, 4, env=on_nodes(2, 4), victims=[2, 3])
    for took_s, found in results[:2]:
        assert found == 2
        assert took_s < SHRUNK_S


def all_die_in_turn(rank: int, world_size: int) -> str:
    """Every time the lowest rank dies, which is the coordinator."""
    comm = Communicator()
    for number in range(1, world_size):
        if comm.rank == 0:
            die_during_calls(comm, 5)
        call_until_failure(comm)
        comm = comm.shrink()
        assert comm.name == f"default/shrunk-{number}"
        assert sum_of_ones(comm) == comm.world_size == world_size - number
    with comm.shrink() as alone:
        assert sum_of_ones(alone) == 1
    comm.close()
    return alone.name


@pytest.mark.parametrize("nodes, n", [(2, 4), *by_night("faults", (1, 8), (2, 8))])
def test_ranks_shrink_to_one(nodes: int, n: int) -> None:
    results = run_ranks(all_die_in_turn, n, env=on_nodes(nodes, n), victims=range(n - 1))
    assert results == [None] * (n - 1) + [f"default/shrunk-{n}"]


def two_die(rank: int, world_size: int, step: int) -> list[Any]:
    """Rank 1 dies in a call, rank 2 in the middle of the shrink that follows."""
    comm = Communicator()
    sum_of_ones(comm)
    if rank == 1:
        die_during_calls(comm, 5)
    call_until_failure(comm)
    if rank == 2:
        assert comm._state.coordination is not None
        agree, num_agreements = comm._state.coordination.agree, 0

        def agree_or_die(*args: Any, **options: Any) -> Any:
            nonlocal num_agreements
            num_agreements += 1
            if num_agreements == 2 and step == 2:  # all are connected, but not all know it
                os.kill(os.getpid(), signal.SIGKILL)
            answers = agree(*args, **options)
            if step == 1:  # it belongs to those who go on, and never connects
                os.kill(os.getpid(), signal.SIGKILL)
            return answers

        comm._state.coordination.agree = agree_or_die  # type: ignore[method-assign]
    began = Moment.now()
    with comm.shrink() as left:
        assert Moment.now() - began < SHRUNK_S
        return [left.rank, left.world_size, left.name, sum_of_ones(left)]


@pytest.mark.parametrize(
    ("nodes", "step"),  # before connecting, or after that
    [(1, 1), (2, 2), *by_night("faults", (1, 2), (2, 1))],
)
def test_second_death_during_shrink_is_left_out_as_well(nodes: int, step: int) -> None:
    results = run_ranks(two_die, 5, step, env=on_nodes(nodes, 5), victims=[1, 2])
    found = [results[rank] for rank in (0, 3, 4)]
    assert found == [[new_rank, 3, "default/shrunk-1", 3] for new_rank in range(3)]


@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
def test_healthy_ranks_leave_others_out_and_the_old_communicator_goes_on(nodes: str) -> None:
    with ThreadRanks(nodes) as ranks:

        def without_1(comm: Communicator) -> tuple[int, int, int] | None:
            if comm.rank == 1:
                return None
            with comm.shrink(exclude=[1]) as left:
                return left.rank, left.world_size, sum_of_ones(left)

        assert ranks.run(without_1) == [(0, 3, 3), None, (1, 3, 3), (2, 3, 3)]
        assert ranks.run(sum_of_ones) == [4] * 4


def test_ranks_that_disagree_on_whom_to_exclude_all_hear_it() -> None:
    with ThreadRanks("aaaa") as ranks:
        errors = ranks.failures(lambda comm: comm.shrink(exclude=[3] if comm.rank else []))
        told = "ranks disagree on whom to exclude: rank 0 says [], rank 1 says [3]"
        assert [told in str(error) for error in errors] == [True, True, True, False]
        assert "rank 3 is this rank" in str(errors[3])


def stop_waiting(ranks: ThreadRanks, came: set[int]) -> None:
    """Let the time be up for the ranks that are missing, once these have come."""
    coordination = ranks.communicators[0]._state.coordination
    assert coordination is not None
    waits = coordination._require()._agreements._open

    def have_come() -> bool:
        return any(came == one.values.keys() for one in tuple(waits.values()))

    def be_late() -> None:
        for one in waits.values():
            one.until_s = 0.0

    wait_until(have_come, f"ranks {came} come")
    coordination._plane.loop.call(be_late)


@pytest.mark.parametrize("comes_late", [False, True])
def test_rank_that_the_others_went_on_without_is_told(comes_late: bool) -> None:
    """It was excluded and shrinks all the same, or comes when the others have decided."""
    with ThreadRanks("aab") as ranks:

        def shrink(comm: Communicator) -> Communicator | None:
            if comes_late:
                return comm.shrink(timeout_s=HANG_S) if comm.rank != 2 else None
            return comm.shrink(exclude=[] if comm.rank == 2 else [2], timeout_s=HANG_S)

        calls = ranks.start(shrink)
        if comes_late:
            stop_waiting(ranks, {0, 1})
        for call in calls[:2]:
            with call.result(HANG_S) as left:
                assert (left.world_size, left.name) == (2, "aab/shrunk-1")
        with pytest.raises(BootstrapError, match="rank 2 was left out: ranks 0, 1 decided without"):
            calls[2].result(HANG_S)
            ranks.communicators[2].shrink()


@pytest.mark.parametrize(
    ("came", "may_go_on"), [([0], False), ([2, 3], False), ([0, 3], True), ([1, 2, 3], True)]
)
def test_minority_does_not_go_on(came: list[int], may_go_on: bool) -> None:
    with ThreadRanks("aaaa") as ranks:
        started = ranks.start(
            lambda comm: comm.shrink(timeout_s=HANG_S) if comm.rank in came else None
        )
        stop_waiting(ranks, {*came})
        for call in (started[rank] for rank in came):
            if may_go_on:
                with call.result(HANG_S) as left:
                    assert left.world_size == len(came)
            else:
                with pytest.raises(BootstrapError, match="of 4 ranks that may be alive came"):
                    call.result(HANG_S)


@pytest.mark.parametrize("go_on", [False, True])
def test_ranks_that_closed_are_gone_unless_they_went_on(go_on: bool) -> None:
    with ThreadRanks("aabb") as ranks:
        ranks.communicators[0].abort("on purpose")
        ranks.failures(lambda comm: comm.barrier())
        last = ranks.communicators[3]
        if go_on:
            calls = ranks.start(
                lambda comm: comm.shrink([3], timeout_s=HANG_S) if comm is not last else None
            )
            for call in calls[:3]:
                call.result(HANG_S).close()
        for comm in ranks.communicators[:3]:
            comm.close()
        if go_on:
            with pytest.raises(BootstrapError, match="ranks 0, 1, 2 may have gone on"):
                last.shrink()
        else:
            with last.shrink() as left:
                assert sum_of_ones(left) == 1


def shrinks_and_closes(rank: int, world_size: int) -> None:
    def shrink_and_close() -> None:
        with ThreadRanks("aab") as ranks:
            ranks.communicators[0].abort("on purpose")
            ranks.failures(lambda comm: comm.barrier())
            left = ranks.run(lambda comm: comm.shrink())
            assert ranks.run(lambda comm: sum_of_ones(left[comm.rank])) == [3] * 3
            for comm in left:
                comm.close()

    shrink_and_close()  # the process's one progress thread starts here
    before = settled_holdings()
    shrink_and_close()
    assert not wait_for_return(before)


def test_nothing_of_either_communicator_stays_open() -> None:
    # In a process of its own: what earlier tests left would go meanwhile.
    run_ranks(shrinks_and_closes, 1)
