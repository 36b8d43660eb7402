"""The whole bootstrap, with threads as ranks, real sockets and hostile clients."""

import contextlib
import fcntl
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from stores import MemoryStore

from hccl_py.transport.bootstrap import Link, Mesh, connect
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.identity import Identity

TIMEOUT_S = 20.0
SEAL_BYTES = 32


class WaitingStore(MemoryStore):
    """A store that can also wait and check, as c10d's do."""

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)


@dataclass
class Rank:
    """One rank's resources and outcome."""

    rank: int
    segment: tuple[int, int, int]
    local_ranks: list[tuple[int, ...]] = field(default_factory=list)
    mesh: Mesh | None = None

    def link(self, peer: int) -> Link:
        assert self.mesh is not None
        (link,) = [link for link in self.mesh.links if link.rank == peer]
        return link

    def close(self) -> None:
        descriptors = list(self.segment)
        for link in self.mesh.links if self.mesh is not None else ():
            shared = [link.segment_fd, link.doorbell_fd, link.arena_fd]
            descriptors += [link.control_fd, *link.lane_fds]
            descriptors += [one for one in shared if one is not None]
        for descriptor in descriptors:
            os.close(descriptor)


def make_doorbell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Job:
    """Ranks as threads. `before_segment` runs in the middle of a rank's bootstrap."""

    def __init__(
        self,
        node_ids: Sequence[str],
        *,
        num_lanes: int = 2,
        timeout_s: float = TIMEOUT_S,
        absent: Sequence[int] = (),
        stores: Callable[[int], Any] | None = None,
        before_segment: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self.store = WaitingStore()
        self.ranks = [
            Rank(rank, (os.memfd_create("test"), make_doorbell(), os.memfd_create("arena")))
            for rank in range(len(node_ids))
        ]
        self._node_ids = node_ids
        self._num_lanes = num_lanes
        self._timeout_s = timeout_s
        self._stores = stores or (lambda rank: self.store)
        self._before_segment = before_segment
        self._pool = ThreadPoolExecutor(len(node_ids))
        self.futures: dict[int, Future[None]] = {
            one.rank: self._pool.submit(self._run, one)
            for one in self.ranks
            if one.rank not in absent
        }

    def _run(self, one: Rank) -> None:
        def make_segment(local_ranks: tuple[int, ...]) -> tuple[int, int, int]:
            one.local_ranks.append(local_ranks)
            self._before_segment(one.rank)
            return one.segment

        one.mesh = connect(
            self._stores(one.rank),
            one.rank,
            len(self.ranks),
            make_segment=make_segment,
            num_lanes=self._num_lanes,
            timeout_s=self._timeout_s,
            identity=Identity.of_this_process(self._node_ids[one.rank]),
        )

    def error(self, rank: int) -> str:
        error = self.futures[rank].exception(timeout=2 * TIMEOUT_S)
        assert isinstance(error, BootstrapError), error
        return str(error)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)
        for one in self.ranks:
            one.close()


@contextlib.contextmanager
def bootstrapped(node_ids: Sequence[str], **options: Any) -> Iterator[Job]:
    with Job(node_ids, **options) as job:
        for future in job.futures.values():
            future.result(timeout=2 * TIMEOUT_S)
        yield job


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_exactly(descriptor: int, num_bytes: int) -> bytes:
    data = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(data) < num_bytes:
        assert time.monotonic() < deadline_s, f"only {data!r} came"
        with contextlib.suppress(BlockingIOError):
            data += os.read(descriptor, num_bytes - len(data))
    return data


def check_connections(job: Job) -> None:
    """Send a message that names its route through every connection, both ways."""
    pairs = [(a, link) for a in job.ranks for link in (a.mesh.links if a.mesh else ())]
    for a, link in pairs:
        for index, descriptor in enumerate((link.control_fd, *link.lane_fds)):
            assert os.write(descriptor, f"{a.rank}>{link.rank}#{index}".encode()) > 0
    for a, link in pairs:
        for index, descriptor in enumerate((link.control_fd, *link.lane_fds)):
            expected = f"{link.rank}>{a.rank}#{index}".encode()
            assert read_exactly(descriptor, len(expected)) == expected
            with pytest.raises(BlockingIOError):
                os.read(descriptor, 1)


def check_shared_memory(job: Job) -> None:
    """Every rank writes to each local peer's segment and rings its bell."""
    for a in job.ranks:
        for link in a.mesh.links if a.mesh else ():
            if link.segment_fd is not None and link.doorbell_fd is not None:
                os.pwrite(link.segment_fd, bytes([100 + a.rank]), a.rank)
                os.pwrite(link.arena_fd or -1, bytes([200 + a.rank]), a.rank)
                os.eventfd_write(link.doorbell_fd, 1)
    for b in job.ranks:
        peers = [rank for rank in b.local_ranks[0] if rank != b.rank]
        for peer in peers:
            assert os.pread(b.segment[0], 1, peer) == bytes([100 + peer])
            assert os.pread(b.segment[2], 1, peer) == bytes([200 + peer])
        if peers:
            assert os.eventfd_read(b.segment[1]) == len(peers)
        else:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(b.segment[1])


def test_connect_alone_makes_a_segment_and_no_socket() -> None:
    before = open_descriptors()
    asked = []

    def make_segment(local_ranks: tuple[int, ...]) -> tuple[int, int, int]:
        asked.append(local_ranks)
        return (-1, -1, -1)

    mesh = connect(WaitingStore(), 0, 1, make_segment=make_segment, num_lanes=1, timeout_s=1)
    assert asked == [(0,)]
    assert (mesh.nodes, mesh.links, len(mesh.members)) == (((0,),), (), 1)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "rank, world_size, num_lanes", [(2, 2, 1), (-1, 2, 1), (0, 0, 1), (0, 2, 0)]
)
def test_connect_senseless_arguments_are_refused(
    rank: int, world_size: int, num_lanes: int
) -> None:
    with pytest.raises(InvalidArgumentError):
        connect(
            WaitingStore(),
            rank,
            world_size,
            make_segment=lambda ranks: (-1, -1, -1),
            num_lanes=num_lanes,
            timeout_s=1,
        )


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
            assert local_ranks == nodes[one.mesh.members[one.rank].node]
            assert [link.rank for link in one.mesh.links] == [
                rank for rank in range(len(node_ids)) if rank != one.rank
            ]
            for link in one.mesh.links:
                is_local = link.rank in local_ranks
                assert len(link.lane_fds) == (0 if is_local else 3)
                shared = (link.segment_fd, link.doorbell_fd, link.arena_fd)
                assert [one is not None for one in shared] == [is_local] * 3
        check_connections(job)
        check_shared_memory(job)
    assert open_descriptors() == before


def test_connect_descriptors_are_non_blocking_and_close_on_exec() -> None:
    with bootstrapped("aab") as job:
        for one in job.ranks:
            for link in one.mesh.links if one.mesh else ():
                for descriptor in (link.control_fd, *link.lane_fds):
                    assert not os.get_blocking(descriptor)
                    assert not os.get_inheritable(descriptor)
                for shared in (link.segment_fd, link.doorbell_fd, link.arena_fd):
                    assert shared is None or fcntl.fcntl(shared, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_connect_lanes_send_small_writes_at_once() -> None:
    with bootstrapped("ab") as job:
        for descriptor in (job.ranks[0].link(1).control_fd, *job.ranks[0].link(1).lane_fds):
            with socket.socket(fileno=os.dup(descriptor)) as lane:
                assert lane.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host, family", [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_connect_loopback_rendezvous_uses_its_family(
    host: str, family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", host)
    with bootstrapped("abb") as job:
        check_connections(job)
        with socket.socket(fileno=os.dup(job.ranks[0].link(1).lane_fds[0])) as lane:
            assert lane.family == family
            assert lane.getpeername()[0] == host


def test_connect_one_node_ignores_an_interface_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "=nosuch0")
    with bootstrapped("aa") as job:
        check_connections(job)


def test_connect_two_nodes_without_the_wanted_interface_lists_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "=nosuch0")
    with Job("ab") as job:
        for rank in (0, 1):
            assert "HCCL_SOCKET_IFNAME==nosuch0" in job.error(rank)
            assert "lo (127.0.0.1" in job.error(rank)


def test_connect_sixteen_ranks_on_two_nodes_takes_little_time() -> None:
    start_s = time.monotonic()
    with bootstrapped("a" * 8 + "b" * 8, num_lanes=3) as job:
        elapsed_s = time.monotonic() - start_s
        check_connections(job)
    assert elapsed_s < 10, "about 0.5 s of work; the rest is room for a busy machine"


def test_connect_absent_ranks_are_named_by_all_within_the_deadline() -> None:
    before = open_descriptors()
    start_s = time.monotonic()
    with Job("aabbb", timeout_s=0.5, absent=[1, 3]) as job:
        for rank in (0, 2, 4):
            assert "ranks 1, 3 of 5 did not arrive" in job.error(rank)
        assert time.monotonic() - start_s < 5
    assert open_descriptors() == before


@pytest.mark.parametrize("node_ids", ["aaa", "abc"])
def test_connect_rank_that_fails_half_way_is_named_by_the_others(node_ids: str) -> None:
    def fail_on_rank_1(rank: int) -> None:
        if rank == 1:
            raise MemoryError("no room for the segment")

    before = open_descriptors()
    with Job(node_ids, timeout_s=1.0, before_segment=fail_on_rank_1) as job:
        assert isinstance(job.futures[1].exception(timeout=TIMEOUT_S), MemoryError)
        for rank in (0, 2):
            message = job.error(rank)
            assert f"rank 1 on {socket.gethostname()} (pid {os.getpid()}) at" in message
            assert "control" in message
            assert "the first failure was rank 1: MemoryError: no room" in message
    assert open_descriptors() == before


class WrongSecretStore(WaitingStore):
    """Hands one rank another secret than the others got."""

    def __init__(self, real: WaitingStore) -> None:
        super().__init__()
        self.real = real
        self.set, self.wait, self.check = real.set, real.wait, real.check  # type: ignore[method-assign]

    def get(self, key: str) -> bytes:
        value = self.real.get(key)
        if key != "members":
            return value
        content = msgpack.packb(msgpack.unpackb(value[SEAL_BYTES:]) | {"secret": bytes(32)})
        return hmac.digest(b"", key.encode() + b"\0" + content, "sha256") + bytes(content)


@pytest.mark.parametrize("node_ids", ["aaa", "abc"])
def test_connect_wrong_secret_is_refused_and_every_error_says_so(
    node_ids: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_descriptors()
    shared = WaitingStore()
    wrong = WrongSecretStore(shared)
    with Job(node_ids, timeout_s=1.0, stores=lambda rank: wrong if rank == 1 else shared) as job:
        # Whoever fails first, everybody's error points at rank 1 and at the secret.
        for rank in (0, 1, 2):
            assert "rank 1" in job.error(rank)
            assert "HCCL_SECRET" in job.error(rank)
    assert "does not know this communicator's secret" in caplog.text
    assert open_descriptors() == before


def test_connect_process_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only root can start a process of another user; so this process claims to be one.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with Job("aa", timeout_s=0.5) as job:
        assert f"it belongs to user {os.getuid()}, this process to" in job.error(1)
        assert "rank 1 on" in job.error(0)
    assert "it belongs to user" in caplog.text


def test_connect_own_secret_never_enters_store_or_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HCCL_SECRET", "correct horse battery staple")
    with bootstrapped("aab") as job:
        check_connections(job)
        assert msgpack.unpackb(job.store.values["members"][SEAL_BYTES:])["secret"] is None
        for value in job.store.values.values():
            assert b"correct horse" not in value
    assert "correct horse" not in caplog.text


class Attack:
    """Clients that dial a rank's two listeners with no knowledge of the secret."""

    GARBAGE = (b"GET / HTTP/1.1\r\n\r\n".ljust(100), b"\xff" * 1_000_000, bytes(72))

    def __init__(self, store: WaitingStore, rank: int) -> None:
        card = msgpack.unpackb(store.get(f"member/{rank}")[SEAL_BYTES:])
        self.targets: list[tuple[int, Any]] = [
            (socket.AF_UNIX, "\0" + card["unix_name"]),
            (socket.AF_INET, (card["tcp_host"], card["tcp_port"])),
        ]
        self.silent: list[socket.socket] = []

    def dial(self, family: int, target: Any) -> socket.socket:
        """Dial until the rank listens."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            client = socket.socket(family)
            client.settimeout(TIMEOUT_S)
            try:
                client.connect(target)
                return client
            except ConnectionRefusedError:
                client.close()
                assert time.monotonic() < deadline_s
                time.sleep(0.001)

    def run(self) -> None:
        for family, target in self.targets:
            self.silent.append(self.dial(family, target))
            half = self.dial(family, target)
            half.send(b"HCCL-PY\0")
            self.silent.append(half)
            for garbage in self.GARBAGE:
                with self.dial(family, target) as client:
                    with contextlib.suppress(ConnectionError):
                        client.sendall(garbage)
                    with contextlib.suppress(ConnectionError):
                        assert client.recv(1) == b"", "a stranger was answered"


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
    assert len(refused) == 2 * (len(Attack.GARBAGE) + 2)
    assert sum("127.0.0.1:" in message for message in refused) == len(refused) / 2
    assert sum(f"pid {os.getpid()}" in message for message in refused) == len(refused) / 2
    assert open_descriptors() == before


def test_connect_flood_of_silent_clients_drops_the_oldest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flooded = threading.Event()

    def hold_rank_1(rank: int) -> None:
        if rank == 1:
            assert flooded.wait(TIMEOUT_S)

    with Job("aa", before_segment=hold_rank_1) as job, contextlib.ExitStack() as clients:
        attack = Attack(job.store, 0)
        flood = [clients.enter_context(attack.dial(*attack.targets[0])) for _ in range(100)]
        assert flood[0].recv(1) == b"", "the oldest must be gone while the bootstrap waits"
        flooded.set()
        for future in job.futures.values():
            future.result(timeout=TIMEOUT_S)
        check_connections(job)
    assert len(caplog.records) == 16, "the log must not be flooded too"


def test_connect_silent_client_is_dropped_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hccl_py.transport.wiring.STRANGER_TIMEOUT_S", 0.2)
    dropped = threading.Event()

    def hold_rank_1(rank: int) -> None:
        if rank == 1:
            assert dropped.wait(TIMEOUT_S)

    with Job("aa", before_segment=hold_rank_1) as job:
        attack = Attack(job.store, 0)
        with attack.dial(*attack.targets[0]) as client:
            assert client.recv(1) == b""
        dropped.set()
        for future in job.futures.values():
            future.result(timeout=TIMEOUT_S)
