"""Barriers, and transfers between every two ranks. Other collectives: `test_matrix.py`."""

from __future__ import annotations

import numpy as np
from guarded import Guarded
from oracle import contribution
from thread_ranks import ThreadRanks, ranks_on, wait_until

from hccl_py import Communicator

ranks = ranks_on("a", "aa", "abbab", HCCL_VERIFY="1")
SIZES = (0, 1, 17, 70_001)  # none, one, odd, more than two tiles of eight-byte elements


def test_barrier_holds_everyone_until_the_last(ranks: ThreadRanks) -> None:
    arrived: list[int] = []
    last = ranks.world_size - 1

    def meet(comm: Communicator) -> int:
        if comm.rank == last:
            wait_until(lambda: len(arrived) == last, "all others are on their way")
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    for _ in range(20):
        arrived.clear()
        assert ranks.run(meet) == [ranks.world_size] * ranks.world_size
        ranks.run(lambda comm: comm.barrier())


def test_send_and_recv_every_pair_and_size(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def numbers(sender: int, receiver: int, count: int) -> Guarded:
        return Guarded(contribution(sender * n + receiver, count, "float64"), "float64")

    def talk(comm: Communicator) -> list[bytes]:
        slots = [(count, peer) for count in SIZES for peer in range(n)]  # itself too
        given = [numbers(comm.rank, peer, count) for count, peer in slots]
        received = [Guarded(np.zeros(count), "float64") for count, _ in slots]
        works = [
            comm.nonblocking.send(one.buffer, peer, tag=count)
            for one, (count, peer) in zip(given, slots, strict=True)
        ]
        # Received in the reverse of the order in which they were sent.
        for into, (count, peer) in reversed(list(zip(received, slots, strict=True))):
            comm.recv(into.buffer, peer, tag=count)
        for work in works:
            work.wait()
        return [into.bytes for into in received]

    for rank, got in enumerate(ranks.run(talk)):
        assert got == [numbers(peer, rank, count).bytes for count in SIZES for peer in range(n)]
