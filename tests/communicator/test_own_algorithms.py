"""Algorithms of users in a communicator: which calls they serve, and what all ranks refuse."""

import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from stores import MemoryStore
from thread_ranks import ThreadRanks

import hccl_py
from hccl_py import Communicator, InvalidArgumentError
from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.plan.language import PlanBuilder, data

DEADLINE_S = 60.0


def all_to_all_ranks(me: int, n: int, plan: PlanBuilder) -> None:
    others = [rank for rank in range(n) if rank != me]
    plan.send(others, data[:])
    plan.recv_reduce(others, data[:])


def to_the_next_only(me: int, n: int, plan: PlanBuilder) -> None:
    plan.send([(me + 1) % n], data[:])
    plan.recv_reduce([(me - 1) % n], data[:])


right = hccl_py.algorithm("all_reduce", cost="1 step")(all_to_all_ranks)
wrong = hccl_py.algorithm("all_reduce")(to_the_next_only)
Given = Callable[[int], tuple[CustomAlgorithm, ...]]


def open_ranks(n: int, given: Given) -> list[Communicator | BaseException]:
    """Connect n ranks, rank i with `given(i)`; return communicators or what ranks raised."""
    store = MemoryStore(DEADLINE_S)

    def open_rank(rank: int) -> Communicator | BaseException:
        try:
            made = Communicator(store, rank, n, timeout_s=DEADLINE_S, algorithms=given(rank))
        except Exception as error:
            return error
        return made

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(open_rank, range(n)))


def messages(opened: list[Communicator | BaseException]) -> set[str]:
    assert all(isinstance(one, InvalidArgumentError) for one in opened), opened
    return set(map(str, opened))


def test_own_algorithm_serves_the_calls_that_its_rules_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = hccl_py.algorithm("all_reduce", min_bytes=256, max_bytes=1024, cost="1 step")
    elsewhere = hccl_py.algorithm("all_reduce", when=lambda n, nodes: n > 64)
    own = (elsewhere(to_the_next_only), limited(all_to_all_ranks))

    def calls(comm: Communicator) -> None:
        for count in (32, 33, 128, 129):
            array = np.arange(count, dtype=np.float64)
            comm.all_reduce(array)
            np.testing.assert_array_equal(array, 2 * np.arange(count))
        comm.close()

    with caplog.at_level(logging.INFO, "hccl_py"), ThreadPoolExecutor(2) as threads:
        list(threads.map(calls, open_ranks(2, lambda _rank: own)))
    chosen = [one for one in caplog.messages if "rank 0: all_reduce" in one]
    names = [one.partition("node(s): ")[2].partition(";")[0] for one in chosen]
    assert names == ["one_shot", *[f"{Path(__file__).name}:all_to_all_ranks"] * 2, "one_shot"]
    assert chosen[1].endswith("your algorithm, 1 step")


@pytest.mark.parametrize("count", [96, 100_000])
def test_chunk_that_is_written_in_part_is_sent_with_the_rest_of_the_input(count: int) -> None:
    def in_two_ways(me: int, n: int, plan: PlanBuilder) -> None:
        if me == 0:
            plan.recv_reduce([1], data[0:1])
            plan.send([2], data[:])
            plan.recv(2, data[:])
        elif me == 1:
            plan.send([0], data[0:1])
            plan.send([2], data[1:3])
            plan.recv(2, data[:])
        else:
            plan.recv_reduce([1], data[1:3])
            plan.recv_reduce([0], data[:])
            plan.send([0, 1], data[:])

    own = (hccl_py.algorithm("all_reduce", chunks=3, cost="3 steps")(in_two_ways),)

    def call(comm: Communicator) -> None:
        given, found = np.arange(count, dtype=np.float64), np.full(count, np.nan)
        comm.all_reduce(given, output=found)
        np.testing.assert_array_equal(found, 3 * np.arange(count))
        np.testing.assert_array_equal(given, np.arange(count))
        comm.close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(call, open_ranks(3, lambda _rank: own)))


def test_wrong_algorithm_is_the_same_error_on_all_ranks() -> None:
    (message,) = messages(open_ranks(3, lambda _rank: (wrong,)))
    assert "to_the_next_only is wrong for 3 ranks" in message
    assert "without the contribution of rank 1\n" in message
    assert message.endswith("came to rank 1, 2 only")


def test_world_of_one_is_proved_too() -> None:
    (message,) = messages(open_ranks(1, lambda _rank: (wrong,)))
    assert "a rank cannot be its own peer" in message


@pytest.mark.parametrize("odd", [0, 2])
def test_rank_without_the_algorithm_is_named(odd: int) -> None:
    opened = open_ranks(3, lambda rank: () if rank == odd else (right,))
    texts = [str(one) for one in opened]
    assert all("algorithms is" in text and f"not set on rank {odd}" in text for text in texts)


def test_function_that_differs_on_one_rank_is_found_by_its_plan() -> None:
    def twice(me: int, n: int, plan: PlanBuilder) -> None:
        all_to_all_ranks(me, n, plan)
        plan.copy(plan.scratch(0, like=data[:]), data[:])

    twice.__name__ = all_to_all_ranks.__name__
    other = hccl_py.algorithm("all_reduce", cost="1 step")(twice)
    (message,) = messages(open_ranks(3, lambda rank: (other if rank == 1 else right,)))
    assert "rank 1 has another function than rank 0" in message


def test_what_was_proved_runs_whatever_the_function_would_write_now() -> None:
    asked, style = [], ["right"]

    @hccl_py.algorithm("all_reduce", chunks=lambda n, nodes: 2 if style[0] == "right" else 1)
    def moody(me: int, n: int, plan: PlanBuilder) -> None:
        asked.append(me)
        if style[0] == "right":
            all_to_all_ranks(me, n, plan)

    @hccl_py.algorithm("broadcast")
    def rooted(me: int, n: int, plan: PlanBuilder) -> None:
        root = plan.root if style[0] == "right" else 0
        if me == root:
            plan.send([rank for rank in range(n) if rank != me], data[:])
        else:
            plan.recv(root, data[:])

    ranks = open_ranks(3, lambda _rank: (moody, rooted))
    style[0] = "wrong"
    num_asked = len(asked)

    def calls(comm: Communicator) -> None:
        for count in (1, 100, 10_000, 1_000_000):
            array = np.full(count, comm.rank + 1, np.int32)
            comm.all_reduce(array)
            assert (array == 6).all()
            array[:] = comm.rank
            comm.broadcast(array, 2)
            assert (array == 2).all()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(calls, ranks))
        assert len(asked) == num_asked
        made = threads.map(lambda comm: subset_failure(comm), ranks)
        (message,) = set(made)  # what it writes now is wrong
        assert "moody is wrong for 3 ranks" in message
        list(threads.map(lambda comm: comm.close(), ranks))


def subset_failure(comm: Communicator) -> str:
    with pytest.raises(InvalidArgumentError) as error:
        comm.subset(range(comm.world_size), "same ranks")
    return str(error.value)


def counting() -> CustomAlgorithm:
    """Return an algorithm that writes another plan each time, a right one."""
    calls = iter(range(1, 100))

    @hccl_py.algorithm("all_reduce")
    def counter(me: int, n: int, plan: PlanBuilder) -> None:
        for _ in range(next(calls)):
            plan.copy(plan.scratch(0, like=data[:]), data[:])
        all_to_all_ranks(me, n, plan)

    return counter


def test_function_that_counts_its_calls_is_refused_by_all_ranks() -> None:
    (message,) = messages(open_ranks(3, lambda _rank: (counting(),)))
    assert "counter writes another plan each time: as op 2 of rank 1 first `send data" in message


def raises(me: int, n: int, plan: PlanBuilder) -> None:
    raise KeyError("size")


def leaves(me: int, n: int, plan: PlanBuilder) -> None:
    sys.exit(3)


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize(
    ("write", "chunks", "cause"),
    [
        (raises, 1, "KeyError in line"),
        (leaves, 1, "SystemExit in line"),
        (all_to_all_ranks, lambda n, nodes: n / 2, "whole number from 1 to 65536, got 1.5"),
        (all_to_all_ranks, lambda n, nodes: 1 // 0, "`chunks` of 3 ranks: ZeroDivisionError"),
    ],
)
def test_failure_of_one_ranks_function_is_the_error_of_all(
    odd: int,
    write: Callable[..., None],
    chunks: object,
    cause: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "__name__", all_to_all_ranks.__name__)
    mine = hccl_py.algorithm("all_reduce", cost="1 step", chunks=chunks)(write)  # type: ignore[arg-type]
    (message,) = messages(open_ranks(3, lambda rank: (mine if rank == odd else right,)))
    assert cause in message
    assert f"rank {odd}" in message


@pytest.mark.parametrize("odd", [0, 2])
def test_what_is_no_algorithm_on_one_rank_is_the_error_of_all(odd: int) -> None:
    opened = open_ranks(3, lambda rank: (None if rank == odd else right,))  # type: ignore[return-value]
    for rank, error in enumerate(opened):
        expected = InvalidArgumentError if rank == odd else hccl_py.BootstrapError
        assert isinstance(error, expected), error
        assert "expected functions under @hccl_py.algorithm(...), got None" in str(error)
        assert rank == odd or f"rank {odd}" in str(error)


def test_each_root_is_proved() -> None:
    def only_from_0(me: int, n: int, plan: PlanBuilder) -> None:
        if me == 0:
            plan.send(range(1, n), data[:])
        else:
            plan.recv(0, data[:])

    (message,) = messages(
        open_ranks(3, lambda _rank: (hccl_py.algorithm("broadcast")(only_from_0),))
    )
    assert "is wrong for 3 ranks on 1 node(s), root 1: rank 0" in message


def test_forced_algorithm_of_the_table_goes_before_one_in_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_ALGORITHM", "ring")
    for opened in open_ranks(2, lambda _rank: (wrong,)):
        assert isinstance(opened, Communicator)
        opened.close()


def test_subset_proves_it_for_its_own_ranks() -> None:
    with ThreadRanks("aab") as ranks:
        for comm in ranks.communicators:
            comm._handed_on["algorithms"] = (wrong,)
        failures = ranks.failures(lambda comm: comm.subset(range(3), "same ranks"))
        assert all("is wrong for 3 ranks" in str(error) for error in failures)


def test_job_that_does_not_ask_loads_nothing_of_it() -> None:
    script = """
import sys
from hccl_py import Communicator
Communicator(None, 0, 1).barrier()
asked = ("custom", "own_algorithms", "plan_file", "explain", "history")
apart = ("plan_command", "simulation", "synthesis", "emulation", "bench")
names = [name.split(".") for name in sys.modules if name.startswith("hccl_py.")]
print([name for name in names if name[-1] in asked or name[1] in apart])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr


def test_reader_that_needs_the_last_chunk_first_gets_it() -> None:
    """Its room for what goes to both readers is taken until the other one has passed that on."""
    num_chunks = 16

    @hccl_py.algorithm("broadcast", chunks=num_chunks)
    def crossed(me: int, n: int, plan: PlanBuilder) -> None:
        first, second = (plan.root + 1) % n, (plan.root + 2) % n
        chunks, last = range(num_chunks - 1), num_chunks - 1
        if me == plan.root:
            for chunk in chunks:
                plan.send([first, second], data[chunk])
            plan.send([second], data[last])
            return
        if me == first:
            plan.recv(second, data[last])
        for chunk in chunks:
            plan.recv(plan.root, data[chunk])
        if me == second:
            plan.recv(plan.root, data[last])
            plan.send([first], data[last])

    def call(comm: Communicator | BaseException) -> None:
        assert isinstance(comm, Communicator)
        with comm:
            for root in range(3):
                received = np.full(4 << 20, comm.rank, np.uint8)
                comm.broadcast(received, root)
                assert (received == root).all()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(call, open_ranks(3, lambda _rank: (crossed,))))
