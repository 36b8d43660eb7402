"""`hccl_py.capture()`: what a replay repeats, in which order, and what ends it."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from quiet_clock import HANG_S
from thread_ranks import ThreadRanks, ranks_on, wait_until

import hccl_py
from hccl_py import AbortedError, Communicator, InvalidArgumentError, MismatchError
from hccl_py.calls.communicator_state import UNISSUED

LARGE = 300_000
"""Elements of a message that fits in no buffer on its way."""

ranks = ranks_on("aab")


def test_replay_keeps_the_order_that_the_waits_of_the_block_gave(ranks: ThreadRanks) -> None:
    """What goes round by transfers is added up by one communicator, then by another."""

    def replay(comm: Communicator) -> list[float]:
        n, me = comm.world_size, comm.rank
        data, passed = np.zeros(LARGE), np.zeros(LARGE)
        with comm.subset(range(n), "other") as other:
            with hccl_py.capture() as graph:
                with hccl_py.group():
                    comm.send(data, (me + 1) % n)
                    comm.recv(passed, (me - 1) % n)
                comm.all_reduce(passed)
                other.nonblocking.all_reduce(passed).wait()
                comm.nonblocking.all_reduce(passed)
            results = []
            for turn in range(3):
                data[:] = me + turn
                graph.replay()
                results.append(float(passed[-1]))
            with pytest.raises(InvalidArgumentError, match="waits for a send or recv"):
                graph.replay(async_op=True)
        return results

    assert ranks.run(replay) == [[9.0 * (3 + 3 * turn) for turn in range(3)]] * 3


def test_replay_in_the_background_gives_one_work(ranks: ThreadRanks) -> None:
    def replay(comm: Communicator) -> tuple[list[float], float]:
        data = np.ones(3)
        with hccl_py.capture() as graph:
            for place in range(3):
                comm.nonblocking.all_reduce(data[: place + 1])
        data[:] = 1.0
        first = graph.replay(async_op=True)
        graph.replay()  # begins when that has ended
        assert first is not None
        first.wait()
        after_two = data.tolist()
        work = graph.replay(async_op=True)
        del graph, first  # the engine keeps what it needs
        gc.collect()
        comm.all_reduce(np.ones(1))  # in order behind it
        assert work is not None
        work.wait(HANG_S)
        assert work.done()
        assert work.exception() is None
        return after_two, float(data[0])

    assert ranks.run(replay) == [([3.0**6, 3.0**4, 3.0**2], 3.0**9)] * 3


def test_replay_of_two_threads_at_a_time_is_rejected(ranks: ThreadRanks) -> None:
    rejected = Event()

    def replay(comm: Communicator) -> float:
        data = np.ones(1)
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
        if comm.rank == 0:
            with ThreadPoolExecutor(1) as other:
                first = other.submit(graph.replay)
                wait_until(lambda: not graph._native.done(), "the other thread replays")
                with pytest.raises(InvalidArgumentError, match="no other thread"):
                    graph.replay()
                rejected.set()
                first.result(HANG_S)
        else:
            assert rejected.wait(HANG_S)
            graph.replay()
        return float(data[0])

    assert ranks.run(replay) == [9.0] * 3


def test_replay_waits_for_calls_that_a_process_group_has_not_issued(ranks: ThreadRanks) -> None:
    def replay(comm: Communicator) -> float:
        data = np.zeros(1)
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
        UNISSUED[comm] = lambda: data.fill(1.0)
        try:
            graph.replay()
        finally:
            del UNISSUED[comm]
        return float(data[0])

    assert ranks.run(replay) == [3.0] * 3


def moved_storage(comm: Communicator) -> tuple[Any, Callable[[], object]]:
    tensor = torch.ones(8)
    return tensor, lambda: tensor.untyped_storage().resize_(0)


def moved_array(comm: Communicator) -> tuple[Any, Callable[[], object]]:
    array = np.ones(8)
    return array, lambda: array.resize(100_000, refcheck=False)


def moved_parameter(comm: Communicator) -> tuple[Any, Callable[[], object]]:
    parameter = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def move() -> None:
        parameter.data = torch.ones(8)

    return parameter, move


@pytest.mark.parametrize("make", [moved_storage, moved_array, moved_parameter])
def test_buffer_that_is_gone_is_named_and_nothing_is_sent(ranks: ThreadRanks, make: Any) -> None:
    def replay(comm: Communicator) -> float:
        kept = np.ones(1)
        gone, move = make(comm)
        with hccl_py.capture() as graph:
            comm.all_reduce(kept)
            comm.all_reduce(gone)
        graph.replay()
        move()
        with pytest.raises(InvalidArgumentError, match=r"call 2 of 2 \(all_reduce\(sum.*new"):
            graph.replay()
        return float(kept[0])

    assert ranks.run(replay) == [9.0] * 3


def test_communicator_that_is_closed_or_aborted_is_named() -> None:
    def replay(comm: Communicator) -> tuple[str, str]:
        other = comm.subset(range(comm.world_size), "other")
        data = np.ones(4)
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
            other.all_reduce(data)
        comm.barrier()
        other.close()
        with pytest.raises(AbortedError) as closed:
            graph.replay()
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
        comm.abort("enough")
        with pytest.raises(AbortedError) as aborted:
            graph.replay()
        return str(closed.value), str(aborted.value)

    with ThreadRanks("aa") as ranks:
        for closed, aborted in ranks.run(replay):
            assert "call 2 of 2 (all_reduce(sum, float64[4]))" in closed
            assert "other, rank" in closed
            assert "enough" in aborted


def test_failure_in_a_replay_is_that_of_the_call() -> None:
    def replay(comm: Communicator) -> None:
        data = np.ones(4)
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
            comm.all_reduce(data[:3])
        if comm.rank == 0:
            graph.replay()
        else:
            comm.all_reduce(data)  # one by one is the same to the others
            comm.all_reduce(data[:2])

    with ThreadRanks("aa") as ranks:
        errors = ranks.failures(replay)
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert "all_reduce(sum, float64[3])" in str(errors[0])
    assert "all_reduce(sum, float64[2])" in str(errors[0])


def test_blocks_that_differ_between_ranks_name_rank_and_call(ranks: ThreadRanks) -> None:
    def record(comm: Communicator) -> float:
        data = np.ones(4)
        with pytest.raises(MismatchError) as raised:
            if comm.rank == 1:
                comm.barrier()
                with hccl_py.capture() as graph:
                    comm.all_reduce(data)
            else:
                with hccl_py.capture() as graph:
                    comm.barrier()
                    comm.all_reduce(data)
        first = "call 1 of the block is all_reduce(sum, float64[4]) on rank 1, barrier() on ranks"
        assert first in str(raised.value)
        assert raised.value.rank == 1
        with pytest.raises(InvalidArgumentError, match="left by MismatchError"):
            graph.replay()
        comm.all_reduce(data)  # the communicator stays open
        return float(data[0])

    assert ranks.run(record) == [9.0] * 3


def test_what_cannot_be_replayed_is_rejected_at_its_call(ranks: ThreadRanks) -> None:
    def record(comm: Communicator) -> float:
        n, data = comm.world_size, np.ones(3)
        feedback = hccl_py.ErrorFeedback("bf16")
        large = np.ones(LARGE, np.float32)
        cases: list[tuple[str, Callable[[], object]]] = [
            ("premul_sum", lambda: comm.all_reduce(data, hccl_py.premul_sum(2.0))),
            ("all_to_all in place", lambda: comm.all_to_all(data, data)),
            ("ErrorFeedback", lambda: comm.all_reduce(large, compression=feedback)),
            ("open block", lambda: hccl_py.capture().__enter__()),
        ]
        assert n == data.size
        for reason, call in cases:
            with pytest.raises(InvalidArgumentError, match=reason), hccl_py.capture() as graph:
                call()
            with pytest.raises(InvalidArgumentError, match="left by InvalidArgumentError"):
                graph.replay()
        with hccl_py.capture() as graph:
            comm.all_reduce(data)
            with pytest.raises(InvalidArgumentError, match="block has not ended"):
                graph.replay()
        for block in (hccl_py.group(), hccl_py.capture()):
            with block, pytest.raises(InvalidArgumentError, match="expected no open"):
                graph.replay()
        return float(data[0])

    assert ranks.run(record) == [3.0] * 3
