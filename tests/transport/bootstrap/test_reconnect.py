"""Lanes that are made when first needed, and connections that break while a communicator works.

The test plays the engine's side.
"""

import contextlib
import errno
import logging
import math
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from selectors import EVENT_WRITE
from types import SimpleNamespace

import pytest
from bootstrapped import Job, bootstrapped, open_descriptors, read_exactly, write
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.transport._core import Cause
from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.flaps import Flaps
from hccl_py.transport.bootstrap.mesh import Mesh
from hccl_py.transport.bootstrap.reconnect import Reconnector
from hccl_py.transport.bootstrap.world import Key
from hccl_py.transport.network.sockets import Connection, OpenSockets
from hccl_py.transport.wire.handshake import RejectedError, Steps

TIMEOUT_S = HANG_S / 2


class ReportingEngine:
    """Reports the breaks that a test tells it, and keeps the connections it is given."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._broken: list[tuple[int, int, int]] = []
        self._wanted: list[tuple[int, int, int]] = []
        self.lock = threading.RLock()
        """Held by a test, what it reports on several engines is there for all of them at once."""
        self.replaced: dict[Key, Connection] = {}
        self.num_replaced: Counter[Key] = Counter()
        self.refused: list[int] = []
        self.unreachable: list[tuple[int, str]] = []
        self.aborted: list[tuple[str, Cause]] = []
        self.gone: list[SimpleNamespace] = []

    def repair_fd(self) -> int:
        return self._fd

    def take_broken(self) -> list[tuple[int, int, int]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        with self.lock:
            broken, self._broken = self._broken, []
        return broken

    def take_wanted(self) -> list[tuple[int, int, int]]:
        with self.lock:
            wanted, self._wanted = self._wanted, []
        return wanted

    def note_refusal(self, peer: int) -> None:
        self.refused.append(peer)

    def note_unreachable(self, peer: int, why: str) -> None:
        self.unreachable.append((peer, why))

    def abort(self, reason: str, cause: Cause) -> None:
        self.aborted.append((reason, cause))

    def replace_connection(self, peer: int, index: int, path: int, connection: Connection) -> None:
        key = Key(peer, index, path)
        self._close(self.replaced.pop(key, None))
        self.replaced[key] = connection
        self.num_replaced[key] += 1

    def has_undelivered(self) -> bool:
        return False

    def ended_peers(self) -> list[SimpleNamespace]:
        return self.gone

    def report(self, *keys: Key) -> None:
        with self.lock:
            self._broken += [(key.rank, key.index, key.path) for key in keys]
        os.eventfd_write(self._fd, 1)

    def want(self, *keys: Key) -> None:
        with self.lock:
            self._wanted += [(key.rank, key.index, key.path) for key in keys]
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)
        for connection in self.replaced.values():
            self._close(connection)

    @staticmethod
    def _close(connection: Connection | None) -> None:
        if isinstance(connection, int):
            os.close(connection)
        elif connection is not None:
            connection.close()


class Pair:
    """Two ranks on two nodes, on one control thread; rank 1 is the one that dials."""

    def __init__(self, job: Job) -> None:
        self.engines = [ReportingEngine(), ReportingEngine()]
        self.meshes: list[Mesh] = [one.mesh for one in job.ranks if one.mesh is not None]
        self.repairs: list[Reconnector] = []
        for rank in (0, 1):
            self.start(rank)

    def start(self, rank: int) -> None:
        mesh = self.meshes[rank]
        listeners = [listener.dup() for listener in mesh.listeners]
        self.repairs.append(Reconnector(self.engines[rank], mesh.world, listeners, OpenSockets()))

    def check(self, index: int, path: int) -> None:
        """Wait for a replacement on both sides and talk over it, both ways."""
        keys = (Key(1, index, path), Key(0, index, path))
        ends = [engine.replaced[key] for engine, key in zip(self.engines, keys, strict=True)]
        for here, there in (ends, ends[::-1]):
            write(here, b"over the new one")
            assert read_exactly(there, 16) == b"over the new one"

    def close(self) -> None:
        for closing in (*self.repairs, *self.engines):
            closing.close()

    def cut_off(self, rank: int) -> None:
        """Let nobody listen on a rank any more."""
        self.repairs[rank].close()
        for listener in self.meshes[rank].listeners:
            listener.close()


@contextlib.contextmanager
def reconnected_pair() -> Iterator[tuple[Pair, Job]]:
    with bootstrapped("ab") as job:
        pair = Pair(job)
        try:
            yield pair, job
        finally:
            pair.close()


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("HCCL_CONNECTIONS", "2")


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encryption(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        pytest.importorskip("cryptography", reason="TLS needs the extra `tls`")
        monkeypatch.setenv("HCCL_TLS", "1")


@pytest.mark.usefixtures("encryption")
@pytest.mark.parametrize("reporters", [(1,), (0, 1), (1, 0)])
def test_reconnect_broken_connection_is_replaced_on_both_sides(
    reporters: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    before = open_descriptors()
    with reconnected_pair() as (pair, _):
        for index in range(3):
            # No engine reports a connection that has been replaced.
            with pair.engines[0].lock, pair.engines[1].lock:
                for rank in reporters:
                    pair.engines[rank].report(Key(1 - rank, index, 1))
        for index in range(3):
            for rank in (0, 1):
                key = Key(1 - rank, index, 1)
                wait_until(lambda r=rank, k=key: k in pair.engines[r].replaced, "a replacement")
            pair.check(index, 1)
        route = "path 1 (lo 127.0.0.1 -> 127.0.0.1 connection 2 of 2)"
        for rank in reporters:
            # A connection may break after another one of the path is back, which is not told again.
            wait_until(
                lambda r=rank: any(
                    text.startswith(f"rank {r}: {route}") and "works again" in text
                    for text in caplog.messages
                ),
                "the log tells of a recovery",
            )
            told = [text for text in caplog.messages if text.startswith(f"rank {rank}: {route}")]
            assert "broke;" in told[0] and sum("works again" in text for text in told) == 1
            assert sum("broke again" in text for text in told) <= 1
    assert open_descriptors() <= before


@pytest.mark.usefixtures("encryption")
@pytest.mark.parametrize("askers", [(0,), (1,), (0, 1), (1, 0)])
def test_lane_either_rank_asks_for_is_made_once(askers: tuple[int, ...]) -> None:
    with reconnected_pair() as (pair, job):
        assert [job.ranks[0].link(1).lanes, job.ranks[1].link(0).lanes] == [(), ()]
        wanted = [(index, path) for index in (1, 2) for path in (0, 1)]
        with pair.engines[0].lock, pair.engines[1].lock:
            for rank in askers:
                pair.engines[rank].want(*(Key(1 - rank, *which) for which in wanted))
        for which in wanted:
            for rank in (0, 1):
                key = Key(1 - rank, *which)
                wait_until(lambda r=rank, k=key: k in pair.engines[r].replaced, "a connection")
            pair.check(*which)
        for rank in askers:  # what is there is not made again
            pair.engines[rank].want(Key(1 - rank, 1, 0))
        wait_until(lambda: not any(repair._pending for repair in pair.repairs), "nothing goes on")
        for rank in (0, 1):
            assert pair.engines[rank].num_replaced == {Key(1 - rank, *which): 1 for which in wanted}


def test_lanes_that_a_call_needs_at_once_are_no_flood(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hccl_py.transport.bootstrap.reconnect.unauthenticated_limit", lambda: 1)
    with reconnected_pair() as (pair, _):
        keys = {Key(1, index, path) for index in (1, 2) for path in (0, 1)}
        pair.engines[0].want(*keys)
        wait_until(lambda: keys == set(pair.engines[0].replaced), "all lanes are made")
    assert "rejected" not in caplog.text


def test_lane_wanted_while_another_one_is_finished_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hccl_py.transport.bootstrap.reconnect._POLL_PERIOD_S", math.inf)
    first, second = Key(0, 1, 0), Key(0, 2, 0)
    with reconnected_pair() as (pair, _):
        repair, engine = pair.repairs[1], pair.engines[1]
        finish = repair._connected

        def want_and_finish(key: Key, pending: PendingConnection) -> None:
            if key == first:
                engine.want(second)
            finish(key, pending)

        monkeypatch.setattr(repair, "_connected", want_and_finish)
        engine.want(first)
        wait_until(lambda: {first, second} <= set(engine.replaced), "both lanes are made")


def test_lane_that_broke_before_it_was_made_on_the_other_side_is_made() -> None:
    with reconnected_pair() as (pair, _):
        pair.engines[0].report(Key(1, 1, 0))
        wait_until(lambda: Key(0, 1, 0) in pair.engines[1].replaced, "a connection")
        wait_until(lambda: Key(1, 1, 0) in pair.engines[0].replaced, "a replacement")
        pair.check(1, 0)


def test_lane_that_the_peer_gave_up_before_this_busy_rank_had_acknowledged_is_no_break(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conclude = PendingConnection._conclude
    given_up: list[Key] = []

    def conclude_late(pending: PendingConnection) -> Steps:
        while not pending.dialled and not given_up:
            yield EVENT_WRITE
        yield from conclude(pending)

    with reconnected_pair() as (pair, _):
        monkeypatch.setattr(PendingConnection, "_conclude", conclude_late)
        dialler, engine = pair.repairs[1], pair.engines[0]
        member_failed = dialler._member_failed

        def note(pending: PendingConnection, rejection: RejectedError) -> None:
            assert pending.key is not None
            given_up.append(pending.key)
            member_failed(pending, rejection)

        monkeypatch.setattr(dialler, "_member_failed", note)
        monkeypatch.setattr(dialler, "ATTEMPT_S", 0.1)
        pair.engines[1].want(Key(0, 1, 0))
        wait_until(lambda: Key(0, 1, 0) in pair.engines[1].replaced, "a second attempt")
        wait_until(lambda: Key(1, 1, 0) in engine.replaced, "its other end")
        assert given_up == [Key(0, 1, 0)]
        assert engine.num_replaced == {Key(1, 1, 0): 1}, "the first attempt never worked"
        pair.check(1, 0)
    assert "broke" not in caplog.text


def test_refusal_after_the_peers_own_attempt_succeeded_is_ignored() -> None:
    with reconnected_pair() as (pair, _):
        repair = pair.repairs[0]
        repair._plane.loop.call(lambda: repair._refused(Key(1, 1, 0)))
        assert not repair._retries


def test_reconnect_control_connection_to_a_rank_that_has_ended_is_refused_on_either_side() -> None:
    for ended, survivor in ((0, 1), (1, 0)):
        with reconnected_pair() as (pair, _):
            pair.cut_off(ended)
            pair.engines[survivor].report(Key(ended, 0, 0))
            engine = pair.engines[survivor]
            wait_until(lambda e=engine, r=ended: r in e.refused, "a refusal")


def test_lane_that_the_network_keeps_away_is_reported_while_the_control_connection_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hccl_py.transport.bootstrap.unmade.GIVEN_UP_S", 0.2)
    monkeypatch.setattr("hccl_py.transport.bootstrap.reconnect._POLL_PERIOD_S", 0.05)
    with reconnected_pair() as (pair, _):
        pair.cut_off(0)
        engine = pair.engines[1]
        # A path that is down is the engine's to judge, and the lane might come by its other path.
        engine.report(Key(0, 0, 1))
        engine.want(Key(0, 1, 0), Key(0, 1, 1))
        wait_until(lambda: engine.refused.count(0) >= 4, "it tries for a while")
        assert not engine.unreachable
    with reconnected_pair() as (pair, _):
        pair.cut_off(0)
        engine = pair.engines[1]
        engine.want(Key(0, 1, 0), Key(0, 1, 1))
        wait_until(lambda: bool(engine.unreachable), "a report")
        peer, why = engine.unreachable[0]
        assert peer == 0
        assert re.search(
            r"-> 127.0.0.1:\d+: lane 0.* was tried for .*connection refused; a fire", why
        )


def test_reconnect_without_descriptors_blames_its_own_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hccl_py.transport.bootstrap.unmade.GIVEN_UP_S", 0.2)
    monkeypatch.setattr("hccl_py.transport.bootstrap.reconnect._POLL_PERIOD_S", 0.05)

    def has_none(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with reconnected_pair() as (pair, _):
        engine = pair.engines[1]
        monkeypatch.setattr("hccl_py.transport.bootstrap.connector.start_connecting", has_none)
        engine.want(Key(0, 1, 0), Key(0, 1, 1))
        wait_until(lambda: bool(engine.aborted), "a report")
        reason, cause = engine.aborted[0]
        assert cause is Cause.INTERNAL_ERROR
        assert "ulimit -n" in reason
        assert "on rank 1" in reason
        assert not engine.unreachable


def test_path_that_breaks_briefly_is_a_warning_only_if_it_breaks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    flaps = Flaps()
    for _ in range(3):
        flaps.log_break("path 0", (1, 0), is_brief=True)
        flaps.log_return("path 0", (1, 0))
    assert [(one.levelname, one.getMessage().split(";")[0]) for one in caplog.records] == [
        ("INFO", "path 0 broke"),
        ("INFO", "path 0 works again"),
        ("WARNING", "path 0 broke again"),
    ]


def test_path_that_breaks_again_and_again_is_logged_twice(caplog: pytest.LogCaptureFixture) -> None:
    flaps = Flaps()
    for _ in range(10):
        flaps.log_break("path 0", (1, 0))
        flaps.log_return("path 0", (1, 0))
    flaps.log_break("path 1", (1, 1))
    assert [text.split(";")[0] for text in caplog.messages] == [
        "path 0 broke",
        "path 0 works again",
        "path 0 broke again",
        "path 1 broke",
    ]


def test_reconnect_settle_waits_for_a_peer_that_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hccl_py.transport.bootstrap.reconnect._SETTLE_S", TIMEOUT_S)
    with bootstrapped("ab") as job:
        pair = Pair(job)
        pair.repairs[0].close()
        began_s = time.monotonic()
        pair.engines[1].report(Key(0, 0, 0), Key(0, 1, 1))
        pair.repairs[1].settle()  # each of them has its other path
        pair.engines[1].report(Key(0, 0, 1))
        wait_until(lambda: pair.repairs[1]._unreachable, "the break is noted")
        pair.start(0)
        pair.repairs[1].settle()
        assert time.monotonic() - began_s < TIMEOUT_S
        assert {Key(0, 0, 0), Key(0, 0, 1)} & set(pair.engines[1].replaced)
        pair.close()


def test_reconnect_shares_one_thread_that_ends_with_the_last_and_is_not_in_a_child() -> None:
    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name == "hccl-control"]

    before = threads()  # an id that no communicator was made of keeps it
    with reconnected_pair() as (pair, _):
        assert len(threads()) == 1
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(int(TIMEOUT_S))
            for repair in pair.repairs:
                repair.close_in_child()
                repair.close()
            listening = [repair._listeners[0].fileno() for repair in pair.repairs]
            os.write(writer, f"{threads()} {listening}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"[] [-1, -1]"
        os.close(reader)
        os.close(writer)
        # The parent's go on working.
        pair.engines[1].report(Key(0, 1, 0))
        wait_until(lambda: Key(1, 1, 0) in pair.engines[0].replaced, "a replacement")
    assert threads() == before
    for repair in pair.repairs:
        repair.close()
