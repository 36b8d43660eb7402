"""A failure of one rank while ranks connect is the error of all of them, and comes at once."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from bootstrapped import (
    TIMEOUT_S,
    Job,
    TamperedStore,
    WaitingStore,
    in_info_of_rank_0,
    open_descriptors,
)
from quiet_clock import Moment

from hccl_py.transport.bootstrap import mesh, shared_failure
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.errors import BootstrapError


def silent_port(opened: ExitStack) -> int:
    """Return a port whose kernel answers nobody: its backlog is full."""
    listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(3):
        client = opened.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
    return int(listener.getsockname()[1])


def refusing_port(opened: ExitStack) -> int:
    """Return a port at which nobody listens, and nobody will."""
    bound = opened.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    return int(bound.getsockname()[1])


@pytest.mark.parametrize(
    "made, why",
    [
        (silent_port, "connecting: no answer in 1 s; is a firewall"),
        (
            refusing_port,
            "connecting: connection refused, although that rank listens; is a firewall",
        ),
    ],
)
def test_port_that_one_rank_cannot_reach_is_named_by_all_before_the_deadline(
    made: Callable[[ExitStack], int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr("hccl_py.transport.bootstrap.full_mesh._KERNEL_ANSWERS_S", 1.0)
    before = open_descriptors()
    with ExitStack() as opened:
        port = made(opened)
        shared = WaitingStore()
        # As a firewall on the way to rank 0 would have it.
        there = [{"interface": "lo", "host": "127.0.0.1", "port": port}]
        store = TamperedStore(shared, in_info_of_rank_0(endpoints=there))
        began = Moment.now()
        with Job("abc", stores=lambda rank: store if rank == 1 else shared) as job:
            errors = [job.error(rank) for rank in range(3)]  # rank 2 has all its connections
        assert Moment.now() - began < TIMEOUT_S / 2
    causes = {error.removeprefix(f"rank {rank}: ") for rank, error in enumerate(errors)}
    assert len(causes) == 1, causes
    (cause,) = causes
    assert cause.startswith("cannot connect: rank 1 on ")
    assert f"could not reach rank 0 on {socket.gethostname()}" in cause
    assert f'at 127.0.0.1:{port} through lo in step "control": {why}' in cause
    assert open_descriptors() <= before


@pytest.mark.parametrize("culprit", [0, 1])
def test_rank_that_fails_before_it_can_meet_is_named_by_all(
    culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rank: int, *rest: Any) -> Any:
        if rank == culprit:
            raise BootstrapError("expected 48 free descriptors, got 22")
        return resources(rank, *rest)

    resources = mesh._Resources
    monkeypatch.setattr(mesh, "_Resources", failing)
    began = Moment.now()
    with Job("abc") as job:
        for rank in range(3):
            assert job.error(rank) == (
                f"rank {rank}: cannot connect: rank {culprit} on {socket.gethostname()}: "
                "expected 48 free descriptors, got 22"
            )
    assert Moment.now() - began < TIMEOUT_S / 2


def test_failure_of_two_ranks_is_that_of_the_first() -> None:
    store = WaitingStore()
    errors = []
    for rank in (1, 2):
        failure = SharedFailure(SealedStore(store, b"secret"), rank, 3)
        failure.has_met = True
        with pytest.raises(BootstrapError) as raised, failure.sharing():
            raise BootstrapError(f"rank {rank} saw something")
        errors.append(str(raised.value))
    assert errors == [f"rank {rank}: cannot connect: rank 1 saw something" for rank in (1, 2)]
    with pytest.raises(BootstrapError, match="^rank 1 saw something$"):
        SharedFailure(SealedStore(store, b"secret"), 0, 3).poll()


def test_failure_under_another_secret_hides_no_other() -> None:
    store = WaitingStore()
    errors = []
    for rank, secret in ((2, b"another"), (0, b"secret"), (1, b"secret")):
        failure = SharedFailure(SealedStore(store, secret), rank, 3)
        failure.has_met = True
        with pytest.raises(BootstrapError) as raised, failure.sharing():
            raise BootstrapError(f"rank {rank} saw something")
        errors.append(str(raised.value).partition(": ")[2])
    assert errors[1:] == ["cannot connect: rank 0 saw something"] * 2


def test_rank_0_waits_for_no_rank_that_ended() -> None:
    class MembersStore(WaitingStore):
        ends: frozenset[int] = frozenset()

        def ended(self) -> frozenset[int]:
            return self.ends

        def check(self, keys: Any) -> bool:
            if keys == ["listening/2"]:  # rank 0 waits for it, and it is killed meanwhile
                self.ends = frozenset([1, 2])
            assert keys != ["listening/1"]
            return super().check(keys)

    store = MembersStore()
    store.ends = frozenset([1])
    for rank in range(3):
        store.set(f"member/{rank}", b"")
    waits = []
    failure = SharedFailure(SealedStore(store, b"secret"), 0, 3)
    failure.has_met = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_failure, "pause", waits.append)
        with pytest.raises(BootstrapError, match="rank 1 ended"), failure.sharing():
            raise BootstrapError("rank 1 ended")
    assert len(waits) == 1


def test_store_that_ended_is_asked_once_and_named() -> None:
    class EndedStore(WaitingStore):
        num_asked = 0

        def check(self, keys: Any) -> bool:
            self.num_asked += 1
            raise ConnectionError("reset by peer")

    store = EndedStore()
    failure = SharedFailure(SealedStore(store, None), 1, 2)
    failure.has_met = True
    expected = "rank 1: cannot connect: .*the store ended: .*reset"
    with pytest.raises(BootstrapError, match=expected), failure.sharing():
        failure.poll()
    failure.poll()
    assert store.num_asked == 1
