"""Members that connect anew by handles: which arguments fit, who is missing, who is late, churn."""

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import run
from leftovers import settled_holdings, wait_for_return
from quiet_clock import HANG_S, Moment
from ranks import run_ranks
from tiers import by_night

from hccl_py import BootstrapError, Communicator, InvalidArgumentError
from hccl_py.membership.reconfigure import Member
from hccl_py.transport.bootstrap import full_mesh
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.network.identity import Identity

CHURN = Path(__file__).parent / "churn.py"
LOST_S = 2.0


class Part:
    """A member as a thread of this process, with its present communicator."""

    def __init__(self, node: str = "a") -> None:
        self.member, self.thread = Member(), ThreadPoolExecutor(1)
        self.identity = Identity.of_this_process(f"node-{node}")
        self.comm: Communicator | None = None

    @property
    def handle(self) -> str:
        return self.member.handle

    def go(self, uuid: int, handles: Any, timeout_s: float = HANG_S) -> tuple[int, int, int]:
        """Return rank, world size, and the sum of a bit of each rank."""
        epoch = self.member.epoch(uuid, handles)
        self.leave()
        make = partial(Communicator, timeout_s=timeout_s, identity=self.identity)
        self.comm = epoch.connect(timeout_s, make)
        data = np.array([1 << self.comm.rank])
        self.comm.all_reduce(data)
        return self.comm.rank, self.comm.world_size, int(data[0])

    def leave(self) -> None:
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.close()

    def close(self) -> None:
        self.leave()
        self.thread.shutdown()
        self.member.close()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Part]]:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("HCCL_COMM_ID", "127.0.0.1:1")  # of unique ids alone
    made = [Part(node) for node in "aab"]
    yield made
    for part in made:
        part.close()


def handles_of(parts: Sequence[Part]) -> list[str]:
    return [part.handle for part in parts]


def start(
    parts: Sequence[Part], uuid: int, handles: Any = None, timeout_s: float = HANG_S
) -> list[Future[tuple[int, int, int]]]:
    given = handles_of(parts) if handles is None else handles
    return [part.thread.submit(part.go, uuid, given, timeout_s) for part in parts]


def connect(parts: Sequence[Part], uuid: int, handles: Any = None) -> list[tuple[int, int, int]]:
    return [one.result(HANG_S) for one in start(parts, uuid, handles)]


def group_of(n: int) -> list[tuple[int, int, int]]:
    return [(rank, n, (1 << n) - 1) for rank in range(n)]


def errors_of(futures: Sequence[Future[Any]]) -> list[BaseException]:
    errors = [one.exception(HANG_S) for one in futures]
    assert all(errors), errors
    return [error for error in errors if error is not None]


def test_members_join_late_shrink_grow_split_and_merge(parts: list[Part]) -> None:
    a, b, c = parts
    assert connect([a], 1) == group_of(1)
    assert connect([a, b, c], 2) == group_of(3)
    assert connect([a, c], 3) == group_of(2)  # the middle one is left out
    assert connect([b, c, a], 4) == group_of(3)
    for part in parts:
        assert connect([part], 10 + parts.index(part)) == group_of(1)
    assert connect([c, b], 5) == group_of(2)
    assert connect([a, b, c], 6) == group_of(3)


def test_rank_in_a_set_is_the_same_on_all_members(parts: list[Part]) -> None:
    found = connect(parts, 1, set(handles_of(parts)))
    assert sorted(found) == group_of(3)
    assert [rank for rank, *_ in found] == [
        sorted(handles_of(parts)).index(part.handle) for part in parts
    ]


@pytest.mark.parametrize(
    ("argument", "handles"),
    [
        ("uuid", lambda mine, other: [mine]),
        ("handles", lambda mine, other: []),
        ("handles", lambda mine, other: [other]),
        ("handles", lambda mine, other: [mine, mine]),
        ("handles", lambda mine, other: mine),
        ("handles", lambda mine, other: None),
        ("handles, entry 1", lambda mine, other: [mine, "nonsense"]),
        ("handles, entry 1", lambda mine, other: [mine, other[:-2]]),
        ("handles, entry 1", lambda mine, other: [mine, 7]),
        ("handles, entry 0", lambda mine, other: ["00" * 256, mine]),
    ],
)
def test_wrong_argument_is_named_and_the_group_stays_as_it_is(
    argument: str, handles: Callable[[str, str], Any], parts: list[Part]
) -> None:
    connect(parts[:1], 1)
    with pytest.raises(InvalidArgumentError, match=f"^{argument}: "):
        parts[0].go("1" if argument == "uuid" else 2, handles(*handles_of(parts[:2])))  # type: ignore[arg-type]
    assert parts[0].comm is not None
    parts[0].comm.barrier()


def test_used_uuid_is_refused_and_the_other_members_hear_it(parts: list[Part]) -> None:
    for used, rest in ((0, [1, 2]), (1, [0, 2])):
        connect([parts[used]], used)
        began = Moment.now()
        errors = errors_of(start(parts, used))
        assert Moment.now() - began < LOST_S
        assert isinstance(errors[used], InvalidArgumentError)
        assert [isinstance(errors[rank], BootstrapError) for rank in rest] == [True] * 2
        for error in errors:
            assert f"uuid: {used} was already used" in str(error)
    assert connect(parts, 7) == group_of(3)


def test_members_with_different_handles_all_raise(parts: list[Part]) -> None:
    a, b, c = handles_of(parts)
    lists = [a, b, c], [a, c, b], [a, b, c]
    futures = [start([part], 1, given)[0] for part, given in zip(parts, lists, strict=True)]
    for error in errors_of(futures):
        assert "another member has other handles" in str(error)
    assert connect(parts, 2) == group_of(3)


def test_late_member_hears_that_the_others_gave_up(parts: list[Part]) -> None:
    given = handles_of(parts)
    for error in errors_of(start(parts[:2], 1, given, 3.0)):
        assert "2 of 3 did not arrive" in str(error)
    assert connect(parts[:2], 2) == group_of(2)
    (error,) = errors_of(start(parts[2:], 1, given))
    assert "2 of 3 did not arrive" in str(error)


@pytest.mark.parametrize("gone", [0, 2])
def test_handle_of_a_member_that_ended_is_named_at_once(gone: int, parts: list[Part]) -> None:
    given = handles_of(parts)
    parts[gone].close()
    left = [part for part in parts if part is not parts[gone]]
    began = Moment.now()
    for error in errors_of(start(left, 1, given)):
        assert isinstance(error, BootstrapError)
        assert f"of rank {gone}, pid {os.getpid()} on" in str(error)
    assert Moment.now() - began < LOST_S
    assert connect(left, 2) == group_of(2)


def test_member_that_reads_after_the_others_went_on_hears_why(
    parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that the list of members is there; the first member drops it then."""
    has_gone_on, wait_for_keys = threading.Event(), SealedStore.wait

    def wait(self: SealedStore, keys: list[str], *rest: Any) -> None:
        wait_for_keys(self, keys, *rest)
        if keys == ["members"]:
            assert has_gone_on.wait(HANG_S)

    monkeypatch.setattr(SealedStore, "wait", wait)
    given = handles_of(parts)
    parts[2].close()
    early, late = start(parts[:2], 1, given)
    (error,) = errors_of([early])
    assert connect(parts[:1], 2) == group_of(1)
    has_gone_on.set()
    began = Moment.now()
    assert str(errors_of([late])[0]).endswith(str(error).partition(": cannot connect: ")[2])
    assert Moment.now() - began < LOST_S


def test_members_that_connect_hear_that_the_first_one_ended(
    parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask its store for nothing meanwhile: the end of the connection tells them."""
    all_connect, is_over, connect_all = threading.Barrier(4), threading.Event(), FullMesh.run

    def run_mesh(mesh: FullMesh) -> Any:
        all_connect.wait(HANG_S)
        if mesh._world.rank == 0:
            assert is_over.wait(HANG_S)
        return connect_all(mesh)

    monkeypatch.setattr(FullMesh, "run", run_mesh)
    monkeypatch.setattr(full_mesh, "POLL_PERIOD_S", HANG_S)
    futures = start(parts, 1)
    all_connect.wait(HANG_S)
    parts[0].member.close()
    began = Moment.now()
    for error in errors_of(futures[1:]):
        assert f"of rank 0, pid {os.getpid()} on" in str(error)
    assert Moment.now() - began < LOST_S
    is_over.set()


def test_store_of_a_member_keeps_only_failures_of_earlier_epochs(parts: list[Part]) -> None:
    for uuid in range(1, 6):
        connect(parts, uuid)
    errors_of(start(parts[:2], 6, handles_of(parts), 2.0))
    connect(parts[:1], 7)
    server = parts[0].member._server
    server.end("never/", "")
    server._plane.loop.call(lambda: None)
    assert list(server._store._values) == ["6/failure"]


def connects_and_closes(rank: int, world_size: int) -> None:
    def connect_and_close() -> None:
        made = [Part(node) for node in "ab"]
        assert connect(made, 1) == group_of(2)
        assert connect(made[::-1], 2) == group_of(2)
        for part in made:
            part.close()

    connect_and_close()  # the process's one progress thread starts here
    before = settled_holdings()
    connect_and_close()
    assert not wait_for_return(before)


def test_nothing_stays_open() -> None:
    run_ranks(connects_and_closes, 1, env={"HCCL_SOCKET_IFNAME": "lo"})


@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(
    ("way", "num_events"),
    [
        ("reconfigure", 10),
        ("grow", 10),
        *by_night("attacks", ("reconfigure", 1000), ("grow", 1000)),
    ],
)
def test_survivors_of_churn_agree_and_sum_right_within_two_seconds(
    way: str, num_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")
    seed = str(random.randrange(1 << 32))
    done = run(sys.executable, CHURN, way, num_events, seed, limit_s=5 * 3600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["events"] == num_events
    assert found["quiet_p100"] < LOST_S, done.stdout
