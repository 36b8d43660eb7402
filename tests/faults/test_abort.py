"""abort(): from any thread at any time, and every waiter on every rank is released.

Ranks are threads; where a signal or torch's global state matters they are processes.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S, Moment
from rank_processes import is_asleep
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until

from hccl_py import AbortedError, Communicator

RELEASED_S = 2.0

layouts = pytest.mark.parametrize("nodes", ["aaaa", "aabb"], ids=["one node", "two nodes"])


def block(comm: Communicator) -> None:
    """Wait for ever, each rank in a call of its own kind."""
    waits: tuple[Callable[[], Any], ...] = (
        lambda: comm.recv(np.zeros(1), 1),
        lambda: comm.all_reduce(np.ones(100_000)),
        lambda: comm.nonblocking.all_reduce(np.ones(100_000)).wait(),
        lambda: comm.nonblocking.recv(np.zeros(1), None).wait(),
    )
    waits[comm.rank]()


def released(calls: list[Future[Any]], began: Moment) -> set[str]:
    """Return what the calls raised, all of them in time."""
    errors = [call.exception(HANG_S) for call in calls]
    assert Moment.now() - began < RELEASED_S
    assert all(isinstance(error, AbortedError) for error in errors), errors
    return {str(error) for error in errors}


@layouts
def test_every_waiter_on_every_rank_is_released_with_one_text(nodes: str) -> None:
    with ThreadRanks(nodes) as ranks:
        calls = ranks.start(block)
        first = ranks.communicators[0]
        wait_until(lambda: first.statistics()["sleeps"] > 0, "rank 0 waits")
        began = Moment.now()
        ranks.communicators[2].abort("stop here")
        (text,) = released(calls, began)
        assert "rank 2" in text
        assert "stop here" in text


@layouts
def test_concurrent_aborts_end_in_one_verdict(nodes: str) -> None:
    with ThreadRanks(nodes) as ranks:
        calls = ranks.start(block)
        together = threading.Barrier(4)

        def abort(comm: Communicator) -> None:
            together.wait()
            for number in range(3):
                comm.abort(f"reason {number} of rank {comm.rank}")

        began = Moment.now()
        threads = [threading.Thread(target=abort, args=(one,)) for one in ranks.communicators]
        for thread in threads:
            thread.start()
        (text,) = released(calls, began)
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        assert sum(f"reason 0 of rank {rank}" in text for rank in range(4)) == 1
        later = ranks.failures(lambda comm: comm.barrier())
        assert {str(error) for error in later} == {text}


def test_close_from_another_thread_ends_the_calls_of_its_rank() -> None:
    with ThreadRanks("aa") as ranks:
        first = ranks.communicators[0]
        call, _ = ranks.start(lambda comm: comm.rank or comm.recv(np.zeros(1), 1))
        wait_until(lambda: first.statistics()["sleeps"] > 0, "rank 0 waits")
        began = Moment.now()
        first.close()
        released([call], began)


def test_works_in_flight_tell_why_they_failed_without_being_waited_for() -> None:
    with ThreadRanks("aa") as ranks:
        first = ranks.communicators[0]
        works = [first.nonblocking.all_reduce(np.ones(5)) for _ in range(3)]
        first.abort("enough")
        for work in works:
            wait_until(work.done, "the work ends")
            assert isinstance(work.exception(), AbortedError)
            with pytest.raises(AbortedError, match="enough"):
                work.wait()


def aborts_in_a_signal_handler(rank: int, world_size: int) -> str:
    comm = Communicator()
    signal.signal(signal.SIGUSR1, lambda *_: comm.abort("SIGUSR1 came"))
    if rank == 1:
        comm.barrier()

        def interrupt() -> None:
            wait_until(lambda: is_asleep(os.getpid()), "the call blocks")
            os.kill(os.getpid(), signal.SIGUSR1)

        threading.Thread(target=interrupt).start()
    with pytest.raises(AbortedError) as caught:
        if rank == 0:
            comm.barrier()  # a slow rank is still here
        comm.recv(np.zeros(1), 1 - rank)
    comm.close()
    return str(caught.value)


def test_abort_in_a_signal_handler_during_a_call() -> None:
    one, other = run_ranks(aborts_in_a_signal_handler, 2)
    assert one == other
    assert "SIGUSR1 came" in one


def aborts_a_group(rank: int, world_size: int, how: str) -> None:
    sub_group = dist.new_group([0, 1])
    if rank == 2:
        dist.barrier()
        return
    work = dist.irecv(torch.ones(1), src=1 - rank, group=sub_group)
    told = threading.Event()
    work.get_future().then(lambda _: told.set())
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} receives", "")
    if rank == 0:
        store.wait(["rank 1 receives"])
        if how == "abort":
            sub_group.abort()
        else:
            dist.distributed_c10d._abort_process_group(sub_group)
    began = Moment.now()
    with pytest.raises(dist.DistBackendError, match="abort"):
        work.wait()
    assert told.wait(HANG_S)
    assert Moment.now() - began < RELEASED_S
    if rank or how == "abort":
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.barrier(group=sub_group)
        began = Moment.now()
        dist.destroy_process_group(sub_group)
        assert Moment.now() - began < RELEASED_S
    dist.barrier()  # the default group is as it was


@pytest.mark.parametrize("how", ["abort", "_abort_process_group"])
def test_torch_group_is_aborted_and_destroyed_and_the_others_go_on(how: str) -> None:
    run_ranks(aborts_a_group, 3, how, backend="hccl")


def aborts_and_meets_again(rank: int, world_size: int) -> list[float]:
    sums = []
    for turn in range(2):
        dist.init_process_group("hccl")
        total = torch.ones(1)
        dist.all_reduce(total)
        sums.append(float(total))
        # An abort also ends calls that the other rank has not come back from. Rank 0 has the store.
        store = dist.distributed_c10d._get_default_store()
        if rank:
            store.wait([f"rank 0 has its sum {turn}"])
        store.set(f"rank {rank} has its sum {turn}", "")
        if rank == 0:
            store.wait([f"rank 1 has its sum {turn}"])
        dist.distributed_c10d._abort_process_group()
    return sums


def test_torch_job_begins_again_after_an_abort() -> None:
    assert run_ranks(aborts_and_meets_again, 2) == [[2.0, 2.0]] * 2
