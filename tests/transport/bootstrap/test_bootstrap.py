"""The whole bootstrap, with threads as ranks, real sockets and hostile clients."""

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from bootstrapped import (
    TIMEOUT_S,
    Attack,
    Job,
    TamperedStore,
    WaitingStore,
    bootstrapped,
    check_connections,
    check_shared_memory,
    connections,
    in_info_of_rank_0,
    open_descriptors,
)
from network_resets import reset
from quiet_clock import Moment

from hccl_py.schedulers.ports import free_port
from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.mesh import connect
from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.providers.zmq.provider import ZmqProvider
from hccl_py.transport.wire.handshake import Steps


def test_connect_alone_makes_a_segment_and_no_socket() -> None:
    before = open_descriptors()
    asked = []

    def make_segment(local_ranks: tuple[int, ...]) -> tuple[int, int, int]:
        asked.append(local_ranks)
        return (-1, -1, -1)

    lanes = {"num_lanes": 1, "slot_bytes": 1 << 17}
    mesh = connect(WaitingStore(), 0, 1, make_segment=make_segment, timeout_s=1, **lanes)
    assert asked == [(0,)]
    assert (mesh.nodes, mesh.links, len(mesh.world.members)) == (((0,),), (), 1)
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "node_ids, nodes",
    [
        ("aa", ((0, 1),)),
        ("ab", ((0,), (1,))),
        ("aaaaa", ((0, 1, 2, 3, 4),)),
        ("babaa", ((0, 2), (1, 3, 4))),
        ("abcde", ((0,), (1,), (2,), (3,), (4,))),
    ],
)
def test_connect_every_layout_links_all_pairs(
    node_ids: str, nodes: tuple[tuple[int, ...], ...]
) -> None:
    before = open_descriptors()
    with bootstrapped(node_ids, num_lanes=3) as job:
        for one in job.ranks:
            assert one.mesh is not None
            assert one.mesh.nodes == nodes
            (local_ranks,) = one.local_ranks
            assert local_ranks in nodes and one.rank in local_ranks
            assert [link.rank for link in one.mesh.links] == [
                rank for rank in range(len(node_ids)) if rank != one.rank
            ]
            for link in one.mesh.links:
                is_local = link.rank in local_ranks
                assert link.lanes == (), "data lanes are made when first needed"
                assert (link.shared is not None) == is_local
        check_connections(job)
        check_shared_memory(job)
    assert open_descriptors() <= before


def test_connect_with_tls_encrypts_what_leaves_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography", reason="TLS needs the extra `tls`")
    monkeypatch.setenv("HCCL_TLS", "1")
    before = open_descriptors()
    with bootstrapped("abb") as job:
        check_connections(job)
        check_shared_memory(job)
        assert not any(isinstance(one, int) for _, one in connections(job.ranks[0].link(1)))
        assert all(isinstance(one, int) for _, one in connections(job.ranks[1].link(2)))
        for value in job.store.values.values():
            assert b"PRIVATE" not in value
    assert open_descriptors() <= before


def test_connect_listens_in_the_port_range_and_names_one_that_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    first = free_port()
    monkeypatch.setenv("HCCL_PORT_RANGE", f"{first}-{first + 50}")
    for _ in range(2):  # the next job finds the same ports free
        with bootstrapped("ab") as job:
            check_connections(job)
            listeners = [one for rank in job.ranks if rank.mesh for one in rank.mesh.listeners]
            ports = {one.getsockname()[1] for one in listeners}
            assert len(ports) == 2
            assert ports <= set(range(first, first + 51))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("HCCL_PORT_RANGE", f"{port}-{port}")
        with Job("ab") as job:
            for rank in (0, 1):
                assert f"every port of HCCL_PORT_RANGE={port}-{port} is taken" in job.error(rank)
        with bootstrapped("aa") as job:  # no other node, no port needed
            check_connections(job)


class LateStore(WaitingStore):
    """Lets its rank do nothing until others have come, so that it is not they who are late."""

    def __init__(self, real: WaitingStore, others: Sequence[str]) -> None:
        super().__init__()
        self.real, self.others = real, others
        self.get, self.wait, self.check = real.get, real.wait, real.check  # type: ignore[method-assign]

    def set(self, key: str, value: bytes) -> None:
        self.real.wait(self.others, timedelta(seconds=TIMEOUT_S))
        self.real.set(key, value)


def test_connect_absent_ranks_are_named_by_all_within_the_deadline() -> None:
    shared = WaitingStore()
    late = LateStore(shared, ["member/2", "member/4"])
    before = open_descriptors()
    start = Moment.now()
    stores = lambda rank: shared if rank else late  # noqa: E731
    with Job("aabbb", timeouts_s={0: 0.5}, absent=[1, 3], stores=stores) as job:
        for rank in (0, 2, 4):
            assert "ranks 1, 3 of 5 did not arrive" in job.error(rank)
        assert Moment.now() - start < 5
    assert open_descriptors() <= before


@pytest.mark.parametrize("node_ids", ["aaa", "abc"])
def test_connect_rank_that_fails_half_way_is_named_by_the_others(node_ids: str) -> None:
    def fail_on_rank_1(rank: int) -> None:
        if rank == 1:
            raise MemoryError("no room for the segment")

    before = open_descriptors()
    with Job(node_ids, before_segment=fail_on_rank_1) as job:
        assert isinstance(job.futures[1].exception(timeout=TIMEOUT_S), MemoryError)
        for rank in (0, 2):
            assert job.error(rank) == (
                f"rank {rank}: cannot connect: rank 1 on {socket.gethostname()}: "
                "MemoryError: no room for the segment"
            )
    assert open_descriptors() <= before


@pytest.mark.parametrize("node_ids", ["aaa", "abc"])
def test_connect_wrong_secret_is_rejected_and_every_error_says_so(
    node_ids: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_descriptors()
    shared = WaitingStore()
    wrong = TamperedStore(shared, lambda members: members | {"secret": bytes(32)})
    with Job(node_ids, stores=lambda rank: wrong if rank == 1 else shared) as job:
        # Whoever fails first, everybody's error points at rank 1 and at the secret.
        for rank in (0, 1, 2):
            assert "rank 1" in job.error(rank)
            assert "HCCL_SECRET" in job.error(rank)
    assert "does not know the secret" in caplog.text
    assert open_descriptors() <= before


def test_connect_with_a_certificate_that_was_swapped_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cryptography", reason="TLS needs the extra `tls`")
    monkeypatch.setenv("HCCL_TLS", "1")
    shared = WaitingStore()
    swapped = TamperedStore(shared, in_info_of_rank_0(certificate=Tls().certificate))
    with Job("ab", stores=lambda rank: swapped if rank == 1 else shared) as job:
        for rank in (0, 1):
            assert "certificate" in job.error(rank)


def test_connect_process_of_another_user_is_rejected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only root can start a process of another user; so this process claims to be one.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with Job("aa") as job:
        assert f"it belongs to user {os.getuid()}, this process to" in job.error(1)
        assert "rank 1 on" in job.error(0)
    assert "it belongs to user" in caplog.text


def test_connect_hostile_clients_are_dropped_and_the_bootstrap_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    attacked = threading.Event()
    before = open_descriptors()

    def hold_rank_2(rank: int) -> None:
        if rank == 2:
            assert attacked.wait(TIMEOUT_S)

    # Rank 2 joins only after the attack, so all of it falls into rank 0's bootstrap.
    with Job("aab", before_segment=hold_rank_2) as job:
        attack = Attack(job.store, 0)
        attack.run()
        attacked.set()
        for future in job.futures.values():
            future.result(timeout=TIMEOUT_S)
        check_connections(job)
        check_shared_memory(job)
        for client in attack.silent:
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
            client.close()
    refused = [record.getMessage() for record in caplog.records]
    # Once for each address and reason; what came again is counted.
    (rest,) = [line for line in refused if "more connections" in line]
    refused.remove(rest)
    for address in ("127.0.0.1:", f"pid {os.getpid()}"):
        reasons = [line.rpartition(": ")[2] for line in refused if address in line]
        assert len(reasons) == len(set(reasons)) == 2, refused
    assert open_descriptors() <= before


@pytest.mark.parametrize("side", ["connect", "accept"])
def test_connect_handshake_that_is_reset_is_tried_again(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake, num_resets = getattr(PendingConnection, side), 0

    def reset_twice(line: PendingConnection, wanted: Any) -> Steps:
        nonlocal num_resets
        if num_resets < 2 and line.socket.family != socket.AF_UNIX:
            num_resets += 1
            reset(line.socket.fileno())
        yield from handshake(line, wanted)

    monkeypatch.setattr(PendingConnection, side, reset_twice)
    with bootstrapped("aab") as job:
        check_connections(job)
    assert num_resets == 2


@pytest.mark.parametrize(
    "number, dialled", [(1, True), (1, False), (2, False)], ids=["dialler", "acceptor", "join"]
)
def test_connect_connection_that_is_lost_after_its_handshake_is_made_again(
    number: int, dialled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One side has it and the other has not yet; or the message that it has all is lost."""
    send, receive = PendingConnection.send, PendingConnection.receive
    num_bytes_received: Counter[PendingConnection] = Counter()
    chosen: list[PendingConnection] = []

    def send_no_acknowledgement(line: PendingConnection, data: bytes, *passed: Any) -> Steps:
        is_tcp = line.socket.family != socket.AF_UNIX
        if is_tcp and line.dialled == dialled and len(data) == 1 and len(chosen) < 2:
            chosen.append(line)
            if number == 1:
                return
        yield from send(line, data, *passed)

    def receive_and_lose(
        line: PendingConnection, num_bytes: int, *passed: int
    ) -> Generator[int, None, bytes]:
        num_bytes_received[line] += num_bytes == 1
        if line in chosen and num_bytes == 1 and num_bytes_received[line] == number == 2:
            reset(line.socket.fileno())
        data = yield from receive(line, num_bytes, *passed)
        if line in chosen and num_bytes == 1 and number == 1:
            reset(line.socket.fileno())
        return data

    monkeypatch.setattr(PendingConnection, "send", send_no_acknowledgement)
    monkeypatch.setattr(PendingConnection, "receive", receive_and_lose)
    with bootstrapped("aab") as job:
        check_connections(job)
    assert len(chosen) == 2


def test_connect_rank_that_awaits_lanes_answers_one_that_lost_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 has all its connections; rank 1 loses one before it knows that it had it."""
    monkeypatch.setenv("HCCL_TRANSPORT", "zmq")
    connect_lanes, receive = ZmqProvider.connect, PendingConnection.receive
    awaits_lanes = threading.Event()
    chosen: list[PendingConnection] = []

    def connect_and_tell(provider: ZmqProvider, *given: Any) -> Any:
        awaits_lanes.set()
        return connect_lanes(provider, *given)

    def lose_acknowledgement(line: PendingConnection, num_bytes: int, *passed: int) -> Any:
        if line.dialled and num_bytes == 1 and not chosen:
            chosen.append(line)
            assert awaits_lanes.wait(TIMEOUT_S)
            reset(line.socket.fileno())
        return receive(line, num_bytes, *passed)

    monkeypatch.setattr(ZmqProvider, "connect", connect_and_tell)
    monkeypatch.setattr(PendingConnection, "receive", lose_acknowledgement)
    with bootstrapped("ab") as job:
        check_connections(job)
        for one in job.ranks:
            assert one.mesh is not None
            assert one.mesh.provider is not None
            one.mesh.provider.close()
    assert chosen
