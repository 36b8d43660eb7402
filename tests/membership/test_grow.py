"""Going on with more ranks: they join by a unique id, do not come, differ, or an old rank dies."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from leftovers import settled_holdings, wait_for_return
from quiet_clock import HANG_S
from rank_processes import on_nodes
from ranks import run_ranks
from thread_ranks import ThreadRanks

import hccl_py
from hccl_py import (
    AbortedError,
    BootstrapError,
    Communicator,
    CommunicatorError,
    InvalidArgumentError,
    get_unique_id,
)
from hccl_py.membership.grow import open_grown, request
from hccl_py.transport.network.identity import Identity


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("HCCL_COMM_ID", raising=False)


def ranks_as_bits(comm: Communicator) -> int:
    """Sum a bit of each rank, so that a missing or doubled rank shows."""
    data = np.full(1000, 1 << comm.rank, np.int64)
    comm.all_reduce(data)
    assert len(set(data)) == 1
    return int(data[0])


def join(uid: bytes, rank: int, world_size: int, node: str = "a", **settings: Any) -> int:
    identity = Identity.of_this_process(f"node-{node}")
    with Communicator(
        uid, rank, world_size, timeout_s=HANG_S, identity=identity, **settings
    ) as comm:
        found = ranks_as_bits(comm)
        comm.barrier()
        return found


def grown(comm: Communicator, uid: bytes | None, num_new: int) -> tuple[Any, ...]:
    with comm.grow(uid, num_new, timeout_s=HANG_S) as made:
        found = made.rank, made.world_size, made.name, ranks_as_bits(made)
        made.barrier()
    for call in (comm.barrier, lambda: ranks_as_bits(comm), lambda: comm.grow(uid)):
        with pytest.raises(AbortedError, match=r"what grow\(\) returned, with \d+ ranks"):
            call()
    return found


@pytest.mark.parametrize(("nodes", "new"), [("a", "a"), ("aab", "bc")])
def test_new_ranks_follow_the_old_ones_and_the_old_communicator_names_the_new(
    nodes: str, new: str
) -> None:
    uid = get_unique_id()
    n, size = len(nodes), len(nodes) + len(new)
    with ThreadRanks(nodes) as ranks, ThreadPoolExecutor(len(new)) as threads:
        joined = [threads.submit(join, uid, n + i, size, node) for i, node in enumerate(new)]
        found = ranks.run(lambda comm: grown(comm, uid if comm.rank == n - 1 else None, len(new)))
        everyone = (1 << size) - 1
        assert found == [(rank, size, nodes, everyone) for rank in range(n)]
        assert [one.result(HANG_S) for one in joined] == [everyone] * len(new)


def test_started_calls_end_before_the_old_communicator_does() -> None:
    uid = get_unique_id()
    with ThreadRanks("ab") as ranks, ThreadPoolExecutor(1) as thread:
        joined = thread.submit(join, uid, 2, 3)

        def start_and_grow(comm: Communicator) -> int:
            data = np.ones(100_000, np.float32)
            work = comm.nonblocking.all_reduce(data)
            grown(comm, uid, 1)
            work.wait()
            return int(data.sum())

        assert ranks.run(start_and_grow) == [200_000] * 2
        assert joined.result(HANG_S) == 7


def fails(
    start: Callable[[Communicator], Any], *new: Callable[[], Any], nodes: str = "aab"
) -> list[BaseException]:
    """Return what each old rank raises while the new ones do this; the old communicator stays."""
    with ThreadRanks(nodes) as ranks, ThreadPoolExecutor(len(new) or 1) as threads:
        futures: list[Future[Any]] = [threads.submit(one) for one in new]
        errors = ranks.failures(start)
        assert ranks.run(ranks_as_bits) == [(1 << len(nodes)) - 1] * len(nodes)
        for one in futures:
            assert isinstance(one.exception(HANG_S), BootstrapError)
    assert all(error is not None for error in errors), errors
    return [error for error in errors if error is not None]


def test_new_rank_that_does_not_come_is_named_and_the_old_communicator_goes_on() -> None:
    uid = get_unique_id()
    for error in fails(lambda comm: comm.grow(uid, timeout_s=0.5)):
        assert isinstance(error, BootstrapError)
        assert "rank 3 of 4 did not arrive" in str(error)


def test_new_rank_with_another_setting_is_named_to_all() -> None:
    uid = get_unique_id()

    def join_reproducibly() -> int:
        return join(uid, 3, 4, reproducible=True)

    for error in fails(lambda comm: comm.grow(uid, timeout_s=HANG_S), join_reproducibly):
        assert isinstance(error, BootstrapError)
        assert "HCCL_REPRODUCIBLE" in str(error)
        assert "rank 3" in str(error)


def test_new_rank_that_expects_another_size_is_named_to_all() -> None:
    uid = get_unique_id()
    for error in fails(lambda comm: comm.grow(uid, timeout_s=HANG_S), lambda: join(uid, 3, 5)):
        assert isinstance(error, BootstrapError)
        assert "rank 3" in str(error)
        assert "expects 5" in str(error)


@pytest.mark.parametrize(
    ("argument", "arguments_of"),
    [
        ("num_new", lambda rank, uids: (uids[0], 1 + rank // 2)),
        ("unique_id", lambda rank, uids: (None, 1)),
        ("unique_id", lambda rank, uids: (uids[rank % 2], 1)),
    ],
)
def test_ranks_that_disagree_all_raise(
    argument: str, arguments_of: Callable[[int, list[bytes]], tuple[Any, int]]
) -> None:
    uids: list[bytes] = [get_unique_id(), get_unique_id()]
    errors = fails(lambda comm: comm.grow(*arguments_of(comm.rank, uids), timeout_s=HANG_S))
    for error in errors:
        assert isinstance(error, InvalidArgumentError)
        assert str(error).startswith(f"{argument}: ")
        assert str(error) == str(errors[0])


@pytest.mark.parametrize("num_new", [0, -1, 1.5, None, "one"])
def test_wrong_number_of_new_ranks_is_refused_at_once(num_new: Any) -> None:
    with Communicator(None, 0, 1) as comm:
        with pytest.raises(InvalidArgumentError, match=r"^num_new: "):
            comm.grow(get_unique_id(), num_new)
        with hccl_py.group(), pytest.raises(InvalidArgumentError, match="grow"):
            comm.grow(get_unique_id())


def loses_a_rank_while_it_waits(rank: int, world_size: int) -> list[Any]:
    comm = Communicator()
    uid = get_unique_id()  # each rank's own: rank 0's is the one that counts
    if rank == 2:
        comm.barrier()
        mine = request(None, 1)
        comm.all_gather(np.empty((3, mine.size), np.uint8), mine)  # as grow begins
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
    with pytest.raises((CommunicatorError, BootstrapError)) as caught:
        comm.grow(uid if rank == 0 else None, timeout_s=HANG_S)
    assert not isinstance(caught.value, BootstrapError), caught.value
    with comm.shrink() as left, pytest.raises(BootstrapError, match="rank 2 of 3 did not arrive"):
        left.grow(get_unique_id() if rank == 0 else None, timeout_s=0.5)
    return [caught.value.rank, left.world_size]


@pytest.mark.parametrize("nodes", [1, 3])
def test_death_of_an_old_rank_ends_the_wait_with_its_number(nodes: int) -> None:
    results = run_ranks(
        loses_a_rank_while_it_waits, 3, env=on_nodes(nodes, 3), victims=[2], timeout_s=HANG_S
    )
    assert results == [[2, 2], [2, 2], None]


def test_rank_that_fails_after_it_was_connected_takes_all_old_ranks_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only that rank tells new ranks of it, by the id: the others know that none waits there."""
    uid, told = get_unique_id(), []
    monkeypatch.setattr("hccl_py.membership.grow.report", lambda text, _uid: told.append(text))

    def grow(comm: Communicator) -> tuple[str, int]:
        connected = comm._connector("grown", HANG_S)

        def connect(store: Any, rank: int, size: int) -> Communicator:
            made = connected(store, rank, size)
            if rank == 1:
                made.close()
                raise BootstrapError("no memory is left")
            return made

        with pytest.raises(BootstrapError) as caught:
            open_grown(comm._state, (uid, 1), HANG_S, comm.all_gather, connect)
        return str(caught.value), ranks_as_bits(comm)

    with ThreadRanks("aab") as ranks, ThreadPoolExecutor(1) as thread:
        joined = thread.submit(join, uid, 3, 4)
        assert ranks.run(grow) == [("rank 1 of 4: no memory is left", 7)] * 3
        assert isinstance(joined.exception(HANG_S), CommunicatorError)
    assert [text.partition(" did not grow")[0] for text in told] == ["rank 1"]


def grows_and_closes(rank: int, world_size: int) -> None:
    def grow_and_close() -> None:
        uid = get_unique_id()
        with ThreadRanks("ab") as ranks, ThreadPoolExecutor(1) as thread:
            joined = thread.submit(join, uid, 2, 3)
            ranks.run(lambda comm: grown(comm, uid, 1))
            joined.result(HANG_S)

    grow_and_close()  # the process's one progress thread starts here
    before = settled_holdings()
    grow_and_close()
    assert not wait_for_return(before)


def test_nothing_of_either_communicator_stays_open() -> None:
    run_ranks(grows_and_closes, 1, env={"HCCL_SOCKET_IFNAME": "lo"})
