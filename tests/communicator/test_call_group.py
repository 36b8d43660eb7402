"""`hccl_py.group()`: calls that are collected, and begin together."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import AbortedError, Communicator, InvalidArgumentError, MismatchError, group

LARGE = 300_000
"""Elements of a message that fits in no buffer on its way."""

ranks = ranks_on("aab")


def test_sends_and_recvs_in_any_order_cannot_deadlock(ranks: ThreadRanks) -> None:
    def exchange(comm: Communicator) -> list[list[int]]:
        n = comm.world_size
        outgoing = [np.full(LARGE, 10 * comm.rank + peer) for peer in range(n)]
        incoming = [np.zeros(LARGE, int) for _ in range(n)]
        with group():
            # Without a group every rank would wait in its first send.
            for peer in range(n):
                comm.send(outgoing[peer], peer)
            for peer in reversed(range(n)):
                comm.recv(incoming[peer], peer)
        return [sorted(set(one.tolist())) for one in incoming]

    assert ranks.run(exchange) == [[[10 * peer + me] for peer in range(3)] for me in range(3)]


def test_calls_begin_at_the_end_in_their_order(ranks: ThreadRanks) -> None:
    def collect(comm: Communicator) -> tuple[list[float], list[float]]:
        data, other = np.ones(4), np.zeros(4)
        with group():
            comm.all_reduce(data)
            comm.broadcast(other, 0)
            assert data.tolist() == [1.0] * 4
            if comm.rank == 0:
                other[:] = 7.0  # is read when the calls begin
            comm.barrier()
            comm.all_reduce(data)
        return data.tolist(), other.tolist()

    assert ranks.run(collect) == [([9.0] * 4, [7.0] * 4)] * 3


def test_every_collective_can_be_collected(ranks: ThreadRanks) -> None:
    def collect(comm: Communicator) -> list[list[float]]:
        n, me = comm.world_size, comm.rank
        mine, every = np.array([me + 1.0]), np.arange(float(n))
        outputs = [np.zeros(n), np.zeros(1), np.zeros(n), np.zeros(n), np.zeros(1), np.zeros(1)]
        blocks = [np.zeros(1) for _ in range(n)]
        with group():
            comm.all_gather(outputs[0], mine)
            comm.reduce_scatter(outputs[1], every)
            comm.all_to_all(outputs[2], every)
            comm.gather(outputs[3] if me == 1 else None, mine, 1)
            comm.scatter(outputs[4], every if me == 2 else None, 2)
            comm.reduce(mine, 0, output=outputs[5])
            comm.all_gather(blocks, mine)
        return [one.tolist() for one in (*outputs, np.concatenate(blocks))]

    assert ranks.run(collect) == [
        [
            [1.0, 2.0, 3.0],
            [3.0 * me],
            [float(me)] * 3,
            [1.0, 2.0, 3.0] if me == 1 else [0.0] * 3,
            [float(me)],
            [6.0] if me == 0 else [0.0],
            [1.0, 2.0, 3.0],
        ]
        for me in range(3)
    ]


def test_nonblocking_call_gives_a_handle_at_once(ranks: ThreadRanks) -> None:
    def collect(comm: Communicator) -> float:
        data = np.ones(LARGE)
        with group():
            work = comm.nonblocking.all_reduce(data)
            assert not work.done()
            assert work.exception() is None
            with pytest.raises(InvalidArgumentError, match="still open; wait after the block"):
                work.wait()
        work.wait()
        assert work.done()
        return float(data[-1])

    assert ranks.run(collect) == [3.0] * 3


def test_calls_of_several_communicators_begin_together(ranks: ThreadRanks) -> None:
    def collect(comm: Communicator) -> list[float]:
        with comm.subset([2, 1, 0], "reversed") as other:
            data = [np.ones(2), np.full(LARGE, 2.0), np.array([7.0 + comm.rank])]
            calls = [lambda: comm.all_reduce(data[0]), lambda: other.all_reduce(data[1])]
            with group():
                # Without a group rank 1 and the others would wait for each other.
                for call in calls if comm.rank == 1 else reversed(calls):
                    call()
                if comm.rank == 0:
                    other.send(data[2], 0)  # which is rank 2 here
                elif comm.rank == 2:
                    other.recv(data[2], 2)
            return [float(one[-1]) for one in data]

    assert ranks.run(collect) == [[3.0, 6.0, 7.0], [3.0, 6.0, 8.0], [3.0, 6.0, 7.0]]


def test_only_the_end_of_the_outermost_group_starts_calls(ranks: ThreadRanks) -> None:
    def nest(comm: Communicator) -> list[float]:
        data = np.ones(3)
        with group():
            comm.all_reduce(data[:1])
            with group():
                comm.all_reduce(data[1:2])
            with pytest.raises(KeyError), group():
                comm.all_reduce(data[2:])  # dropped with its group
                raise KeyError("mine")
            assert data.tolist() == [1.0] * 3
        return data.tolist()

    assert ranks.run(nest) == [[3.0, 3.0, 1.0]] * 3
    with group():  # of this thread: the ranks' threads call as ever
        assert ranks.run(nest) == [[3.0, 3.0, 1.0]] * 3


def test_call_that_fails_at_the_end_raises_there() -> None:
    def differ(comm: Communicator) -> None:
        data = np.ones(8)
        with group():
            comm.all_reduce(data[: 4 + comm.rank])
            comm.barrier()

    with ThreadRanks("aa") as ranks:
        errors = ranks.failures(differ)
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert "all_reduce(sum, float64[4]" in str(errors[0])


def test_exception_out_of_the_block_starts_nothing(ranks: ThreadRanks) -> None:
    def leave(comm: Communicator) -> list[float]:
        data = np.ones(1)
        with pytest.raises(KeyError) as raised, group():
            work = comm.nonblocking.all_reduce(data)
            comm.all_reduce(data)
            raise KeyError("mine")
        if sys.version_info >= (3, 11):
            assert "none of the 2 calls of the block was started" in raised.value.__notes__[0]
        assert work.done()
        with pytest.raises(InvalidArgumentError, match="never started.*left by KeyError: 'mine'"):
            work.wait()
        assert data.tolist() == [1.0]
        comm.all_reduce(data)  # and the next call is nobody's second
        return data.tolist()

    assert ranks.run(leave) == [[3.0]] * 3


def test_wrong_argument_raises_in_the_block_and_starts_nothing(ranks: ThreadRanks) -> None:
    def leave(comm: Communicator) -> list[float]:
        data = np.ones(1)
        with pytest.raises(InvalidArgumentError, match="root: expected a rank"), group():
            comm.all_reduce(data)
            comm.broadcast(data, 17)
        return data.tolist()

    assert ranks.run(leave) == [[1.0]] * 3


def test_communicator_closed_in_the_block_says_so() -> None:
    with ThreadRanks("a") as ranks:
        (comm,) = ranks.communicators

        def close(_: Communicator) -> None:
            with group():
                comm.barrier()
                comm.close()
                comm.barrier()

        (error,) = ranks.failures(close)
    assert isinstance(error, AbortedError)


def check_torch_is_left_alone(rank: int, world_size: int) -> list[float]:
    tensor = torch.ones(2)
    with group():
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
    return tensor.tolist()


def test_calls_of_torch_are_never_collected() -> None:
    assert run_ranks(check_torch_is_left_alone, 2, backend="hccl") == [[4.0, 4.0]] * 2
