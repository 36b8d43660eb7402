"""Calls of several threads at a time, on one communicator and on several; also without the GIL."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
from node_shapes import one_node
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator
from hccl_py.calls.plan_cache import PlanCache
from hccl_py.memory.element_types import ELEMENT_TYPES
from hccl_py.transport.types import Compression, DType

THREADS = 4
ROUNDS = 25
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16")

FLOAT = ELEMENT_TYPES[DType.FLOAT32]

ranks = ranks_on("ab", "aa")


def at_once(work: Callable[[int], Any]) -> None:
    """Call `work` with each thread's number, all of them beginning together."""
    begin = Barrier(THREADS)

    def body(thread: int) -> None:
        begin.wait()
        work(thread)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(body, range(THREADS)))


def test_calls_of_one_size_by_several_threads_are_each_right(ranks: ThreadRanks) -> None:
    """Which call of a peer a call meets is open, so all give the same numbers."""

    def body(comm: Communicator) -> None:
        def calls(_thread: int) -> None:
            for _ in range(ROUNDS):
                data = np.full(3000, comm.rank + 1, "float32")
                comm.all_reduce(data)
                assert (data == 3).all()

        at_once(calls)

    ranks.run(body)


def test_messages_of_several_threads_keep_their_numbers(ranks: ThreadRanks) -> None:
    def body(comm: Communicator) -> None:
        peer = 1 - comm.rank

        def calls(thread: int) -> None:
            for number in range(ROUNDS):
                size = 1 + 97 * number
                data, got = np.full(size, 1000 * thread + number), np.zeros(size, "int64")
                sent = comm.nonblocking.send(data, peer, tag=thread)
                comm.recv(got, peer, tag=thread)
                sent.wait()
                assert (got == data).all()

        at_once(calls)

    ranks.run(body)


def test_communicators_of_several_threads_learn_types_and_plans_at_a_time() -> None:
    """Several threads at once meet every element type and size for the first time."""
    layouts = ["aa", "ab"] * (THREADS // 2)
    groups = [ThreadRanks(layout) for layout in layouts]

    def calls(thread: int) -> None:
        def body(comm: Communicator) -> None:
            for number in range(ROUNDS):
                data = np.full(1 + 31 * number, comm.rank + 1, DTYPES[number % len(DTYPES)])
                comm.all_reduce(data)
                assert (data == 3).all()
                work = comm.nonblocking.broadcast(data, root=number % 2)
                work.wait()
                assert (data == 3).all()

        groups[thread].run(body)

    try:
        at_once(calls)
    finally:
        for group in groups:
            group.close()


def test_plans_are_found_by_several_threads_beside_one_that_drops_them() -> None:
    calls = [("all_reduce", FLOAT, 0, count, None, True, Compression.NONE) for count in range(64)]
    expected = [PlanCache(0, one_node(2)).find(*call).fingerprint for call in calls]
    cache = PlanCache(0, one_node(2))

    def find(thread: int) -> None:
        for number, call in enumerate(calls * 10):
            assert cache.find(*call).fingerprint == expected[number % len(calls)]
            if thread == 0 and number % 7 == 0:
                cache.clear()

    at_once(find)
