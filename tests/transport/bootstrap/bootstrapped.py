"""Ranks as threads that only bootstrap: real sockets, and connections that a test uses itself.

with bootstrapped("aab") as job:                 # three ranks on two emulated nodes
    check_connections(job)
"""

from __future__ import annotations

import contextlib
import gc
import hmac
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from quiet_clock import HANG_S
from stores import MemoryStore

from hccl_py.transport.bootstrap.mesh import Link, Mesh, connect
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.sockets import Connection

TIMEOUT_S = HANG_S / 2
SEAL_BYTES = 32


class WaitingStore(MemoryStore):
    """A store that can also wait, as c10d's do."""

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


class TamperedStore(WaitingStore):
    """Hands one rank another list of members than rank 0 published."""

    def __init__(self, real: WaitingStore, change: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.real, self.change = real, change
        self.set, self.wait, self.check = real.set, real.wait, real.check  # type: ignore[method-assign]

    def get(self, key: str) -> bytes:
        value = self.real.get(key)
        if key != "members":
            return value
        content = msgpack.packb(self.change(msgpack.unpackb(value[SEAL_BYTES:])))
        return hmac.digest(b"", key.encode() + b"\0" + content, "sha256") + bytes(content)


def in_info_of_rank_0(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a change of the members: fields of rank 0's peer info."""

    def change(members: dict[str, Any]) -> dict[str, Any]:
        first, *others = members["infos"]
        changed = msgpack.packb(msgpack.unpackb(first) | fields)
        return members | {"infos": [changed, *others]}

    return change


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
            descriptors += link.shared or ()
            for _, connection in connections(link):
                if isinstance(connection, int):
                    descriptors.append(connection)
                else:
                    connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        for listener in self.mesh.listeners if self.mesh is not None else ():
            listener.close()
        if self.mesh is not None and self.mesh.coordination is not None:
            self.mesh.coordination.close()


def connections(link: Link) -> list[tuple[tuple[int, int], Connection]]:
    """Return all connections of a link by index and path."""
    return [
        ((index, path), connection)
        for index, paths in enumerate((link.controls, *link.lanes))
        for path, connection in enumerate(paths)
    ]


def make_doorbell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Job:
    """Ranks as threads. `before_segment` runs in the middle of a rank's bootstrap."""

    def __init__(
        self,
        node_ids: Sequence[str],
        *,
        num_lanes: int = 2,
        timeouts_s: Mapping[int, float] = {},  # noqa: B006  # by rank; else TIMEOUT_S
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
        self._timeouts_s = timeouts_s
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
            slot_bytes=1 << 17,
            timeout_s=self._timeouts_s.get(one.rank, TIMEOUT_S),
            identity=Identity.of_this_process(self._node_ids[one.rank]),
        )

    def error(self, rank: int) -> str:
        error = self.futures[rank].exception(timeout=2 * TIMEOUT_S)
        assert isinstance(error, BootstrapError), error
        return str(error)

    def __enter__(self) -> Job:
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
    """Count them; what earlier tests left may still go, so a later count may be smaller."""
    gc.collect()
    with bootstrapped("aa"):  # the control plane of an earlier test's communicator keeps its port
        pass
    return len(os.listdir("/proc/self/fd"))


def write(connection: Connection, data: bytes) -> None:
    num_sent = (
        os.write(connection, data)
        if isinstance(connection, int)
        else connection.send(memoryview(data))
    )
    assert num_sent == len(data)


def read_some(connection: Connection, num_bytes: int) -> bytes:
    """Read what is there, b"" if that is nothing."""
    if isinstance(connection, int):
        with contextlib.suppress(BlockingIOError):
            return os.read(connection, num_bytes)
        return b""
    data = bytearray(num_bytes)
    return bytes(data[: connection.receive(memoryview(data))])


def read_exactly(connection: Connection, num_bytes: int) -> bytes:
    data = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(data) < num_bytes:
        assert time.monotonic() < deadline_s, f"only {data!r} came"
        data += read_some(connection, num_bytes - len(data))
    return data


def check_connections(job: Job) -> None:
    """Send a message that names its route through every connection, both ways."""
    pairs = [(a, link) for a in job.ranks for link in (a.mesh.links if a.mesh else ())]
    for a, link in pairs:
        for where, connection in connections(link):
            write(connection, f"{a.rank}>{link.rank}#{where}".encode())
    for a, link in pairs:
        for where, connection in connections(link):
            expected = f"{link.rank}>{a.rank}#{where}".encode()
            assert read_exactly(connection, len(expected)) == expected
            assert read_some(connection, 1) == b""


def check_shared_memory(job: Job) -> None:
    """Every rank writes to each local peer's segment and rings its bell."""
    for a in job.ranks:
        for link in a.mesh.links if a.mesh else ():
            if link.shared is not None:
                segment_fd, doorbell_fd, arena_fd = link.shared
                os.pwrite(segment_fd, bytes([100 + a.rank]), a.rank)
                os.pwrite(arena_fd, bytes([200 + a.rank]), a.rank)
                os.eventfd_write(doorbell_fd, 1)
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


class Attack:
    """Clients that dial a rank's two listeners with no knowledge of the secret."""

    GARBAGE = (b"GET / HTTP/1.1\r\n\r\n".ljust(100), b"\xff" * 1_000_000, bytes(76))

    def __init__(self, store: WaitingStore, rank: int) -> None:
        info = msgpack.unpackb(store.get(f"member/{rank}")[SEAL_BYTES:])
        self.targets: list[tuple[int, Any]] = [
            (socket.AF_UNIX, "\0" + info["unix_name"]),
            (socket.AF_INET, (info["endpoints"][0]["host"], info["endpoints"][0]["port"])),
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
