"""`hccl_py.group()`: calls that are collected, and begin together."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from thread_ranks import ThreadRanks, counters, ranks_on

from hccl_py import (
    AbortedError,
    Communicator,
    InvalidArgumentError,
    MismatchError,
    group,
    premul_sum,
)

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


def _send_on(comm: Communicator, data: Any) -> None:
    comm.send(data, (comm.rank + 1) % comm.world_size)


def _recv_on(comm: Communicator, data: Any) -> None:
    comm.recv(data, (comm.rank - 1) % comm.world_size)


Calls = Callable[[Communicator, Communicator, Any], None]

AT_ONCE: dict[str, tuple[str, str, Calls]] = {
    "two recvs": ("1, recv", "2, recv", lambda c, _, b: (_recv_on(c, b[:5]), _recv_on(c, b[4:9]))),
    "a send and a recv": ("1, send", "2, recv", lambda c, _, b: (_send_on(c, b), _recv_on(c, b))),
    "a recv and a send of a part": (
        "1, recv",
        "3, send",
        lambda c, _, b: (_recv_on(c, b), c.barrier(), _send_on(c, b[7:8])),
    ),
    "a send and a collective": (
        "1, send",
        "2, all_reduce",
        lambda c, _, b: (_send_on(c, b), c.all_reduce(b)),
    ),
    "a recv and what a collective reads": (
        "1, all_gather",
        "2, recv",
        lambda c, _, b: (c.all_gather(b[:9], b[9:12]), _recv_on(c, b[11:])),
    ),
    "a recv and a block of a list": (
        "1, all_gather",
        "2, recv",
        lambda c, _, b: (c.all_gather([b[:1], b[2:3], b[4:5]], b[9:10]), _recv_on(c, b[4:5])),
    ),
    "two communicators": (
        "1, all_reduce",
        "2, all_reduce",
        lambda c, d, b: (c.all_reduce(b), d.all_reduce(b)),
    ),
    "blocking and not": (
        "1, send",
        "2, all_to_all",
        lambda c, _, b: (_send_on(c, b), c.nonblocking.all_to_all(b[:9], b[9:18])),
    ),
    "an output that another communicator reduces": (
        "1, all_reduce",
        "2, reduce",
        lambda c, d, b: (c.all_reduce(b[:3], output=b[3:6]), d.reduce(b[5:8], d.rank)),
    ),
    "products of what an earlier call reduces": (
        "1, all_reduce",
        "2, the products of premul_sum",
        lambda c, _, b: (c.all_reduce(b[:9]), c.reduce_scatter(b[9:12], b[:9], premul_sum(0.5))),
    ),
    "an exchange in place of what an earlier call reduces": (
        "1, all_reduce",
        "2, the copy of input",
        lambda c, _, b: (c.all_reduce(b[:3]), c.all_to_all(b[:3], b[:3])),
    ),
}


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
@pytest.mark.parametrize("kind", AT_ONCE)
def test_calls_that_share_memory_at_once_are_refused_and_both_named(
    ranks: ThreadRanks, kind: str, make: Callable[[int], Any]
) -> None:
    one, two, calls = AT_ONCE[kind]

    def refuse(comm: Communicator) -> float:
        with comm.subset([2, 0, 1], "other") as other:
            buffer, before = make(18), counters(comm)
            with pytest.raises(InvalidArgumentError, match=f"call {one}.*call {two}"), group():
                work = comm.nonblocking.barrier()
                calls(comm, other, buffer)
            with pytest.raises(InvalidArgumentError, match="never started"):
                work.wait()
            assert counters(comm) == before, "nothing was sent"
            assert buffer.tolist() == [1.0] * 18 or "copy" not in kind
            comm.all_reduce(buffer[:1])
            return float(buffer[0])

    one, two = (f"{int(name[0]) + 1}{name[1:]}" for name in (one, two))  # behind the barrier
    assert ranks.run(refuse) == [3.0] * 3


def test_calls_that_may_share_memory_are_taken(ranks: ThreadRanks) -> None:
    def share(comm: Communicator) -> None:
        n, me = comm.world_size, comm.rank
        with comm.subset(range(n), "other") as other:
            mine, total, everyone = np.full(4, 1.0 + me), np.zeros(4), np.zeros((2, n, 4))
            copied = np.zeros(4)
            received = np.zeros((n, 4))
            with group():
                for peer in range(n):  # one buffer to all, and a row from each
                    comm.send(mine, peer)
                    comm.recv(received[peer], peer)
                    comm.recv(received[peer][:0], peer, 1)
                    comm.send(mine[2:2], peer, 1)
                comm.all_gather(everyone[0], mine)
                other.all_gather(everyone[1], mine)
                comm.all_reduce(mine, output=total)
                comm.all_reduce(total)  # one behind the other
                comm.all_reduce(total, output=total)
                comm.broadcast(total, 1)
                comm.all_reduce(total, output=copied)  # of what the calls before leave
                comm.all_reduce(mine, output=total)
            assert received.tolist() == [[1.0 + peer] * 4 for peer in range(n)]
            assert everyone.tolist() == [received.tolist()] * 2
            assert copied.tolist() == [6.0 * n * n * n] * 4
            assert total.tolist() == [6.0] * 4

    ranks.run(share)
