"""The control plane's thread and sockets: whom it believes, what it survives, what it leaves."""

import logging
import os
import resource
import selectors
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from bootstrapped import bootstrapped
from fake_engine import FakeEngine
from quiet_clock import HANG_S
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator
from hccl_py.transport.control import control_plane as plane_module
from hccl_py.transport.control.control_plane import ControlPlane
from hccl_py.transport.control.message import (
    MAX_MESSAGE_BYTES,
    ControlAddress,
    ControlMembers,
    Entry,
    pack,
    unpack,
)
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.sockets import ControlSockets
from hccl_py.transport.errors import BootstrapError

ID = bytes(range(16))
SECRET = bytes(range(32))
DEADLINE_S = HANG_S


class Client:
    """The connections of one of the other ranks, in the thread of the test."""

    def __init__(self, members: ControlMembers) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: deque[bytes] = deque()
        self.sockets = ControlSockets(self.selector, lambda _, one: self.received.append(one))
        self.server = members.addresses[0].key
        self.sockets.admit(members)

    def send(self, message: bytes) -> None:
        self.sockets.send(self.server, message)

    def turn(self) -> bool:
        for ready, _ in self.selector.select(0.01):
            ready.data()
        self.sockets.tick()
        return True

    def answers(self, sender: int) -> bool:
        """Say whether a heartbeat of this rank is answered."""
        self.send(beat(sender))
        wait_until(lambda: self.turn() and bool(self.received), "an answer", DEADLINE_S)
        entries = unpack(self.received.popleft())
        return [(one.kind, one.receiver) for one in entries] == [("beat-back", sender)]


class Server:
    """A control plane with rank 0 of three; the two others are what a test dials with."""

    def __init__(self) -> None:
        self.plane = ControlPlane()
        self.control_address = self.plane.control_address("", None)
        others = (ControlAddress(bytes([rank]) * 16, "nobody") for rank in (1, 2))
        addresses = (self.control_address, *others)
        self.members = ControlMembers(ID, 0, addresses, SECRET)
        self.engine = FakeEngine(0)
        participant = Participant(self.members, self.engine, self.plane.send)
        self.plane.loop.call(lambda: self.plane.admit(self.members))
        self.plane.loop.call(lambda: self.plane.attach(participant))
        self.clients: list[Client] = []

    def dial(self, rank: int, secret: bytes = SECRET) -> Client:
        self.clients.append(Client(replace(self.members, rank=rank, secret=secret)))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.sockets.close()
        self.plane.loop.call(lambda: self.plane.leave(self.members))
        self.plane.loop.stop()
        self.engine.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def beat(sender: int, communicator: bytes = ID) -> bytes:
    (message,) = pack([Entry(communicator, sender, 0, "beat", [1, False, [], {}])])
    return message


def test_member_is_answered_and_its_word_counts_for_itself_alone(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    dialled = server.dial(1)
    report = Entry(ID, 2, 0, "report", [b"", None, None])
    (forged,) = pack([report])
    dialled.send(forged)
    assert dialled.answers(1)
    assert server.engine.adopted is None
    assert "claimed to be rank 2" in caplog.text


def test_stranger_with_another_secret_is_rejected(server: Server) -> None:
    stranger, member = server.dial(1, b"a guess"), server.dial(2)
    stranger.send(beat(1))
    for _ in range(20):
        stranger.turn()
    assert member.answers(2)
    assert not stranger.received


def test_rank_that_has_left_may_come_back_to_another_communicator(server: Server) -> None:
    client = server.dial(1)
    assert client.answers(1)
    server.plane.loop.call(lambda: server.plane.sockets.dismiss(server.members))
    server.plane.loop.call(lambda: server.plane.sockets.admit(server.members))
    wait_until(lambda: client.turn() and client.server not in client.sockets._connections, "end")
    assert client.answers(1)


GARBAGE = [
    b"",
    b"\xff" * 1000,
    b"\xdd\xff\xff\xff\xff",
    msgpack.packb([1, 2, 3]),
    msgpack.packb([[ID, "x", 0, "beat", None]]),
    msgpack.packb([[ID, 1, 0, "beat", None], [ID, 1, 0, "report", [5, None, []]]]),
    msgpack.packb([[ID, 1, 0, kind, "?"] for kind in ("agree", "set", "get", "check", "adopted")]),
    msgpack.packb([[b"other", 1, 0, "beat", None]]),
    msgpack.packb([[ID, 1 << 40, 0, "beat", None]]),
]


def test_garbage_of_a_member_harms_nobody(server: Server) -> None:
    dialled = server.dial(1)
    for garbage in GARBAGE:
        dialled.send(garbage)
    assert dialled.answers(1)
    server.dial(1).send(bytes(MAX_MESSAGE_BYTES + 1))
    assert server.dial(2).answers(2)


def test_entries_are_split_over_messages_and_one_too_large_is_left_out() -> None:
    entries = [Entry(ID, 1, 0, "set", bytes(1 << 20)) for _ in range(6)]
    messages = pack([*entries, Entry(ID, 1, 0, "set", bytes(MAX_MESSAGE_BYTES))])
    assert len(messages) == 2
    assert all(len(message) <= MAX_MESSAGE_BYTES for message in messages)
    assert [entry for message in messages for entry in unpack(message)] == entries


@pytest.mark.parametrize("nodes", ["aaa", "aab"])
def test_ranks_agree_share_a_store_and_know_their_clocks(nodes: str) -> None:
    before = plane_module._plane  # an id that no communicator was made of keeps it
    with bootstrapped(nodes) as job:
        handles: list[Any] = [one.mesh.coordination for one in job.ranks if one.mesh is not None]
        engines = [FakeEngine(rank) for rank in range(3)]
        for handle, engine in zip(handles, engines, strict=True):
            handle.attach(engine)
        results: dict[int, Any] = {}

        def use(rank: int) -> None:
            agreed = handles[rank].agree("key", rank * 10, DEADLINE_S)
            store = handles[rank].store("part/")
            store.set(str(rank), b"of %d" % rank)
            results[rank] = agreed, [store.get(str(other)) for other in range(3)]

        threads = [threading.Thread(target=use, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = {0: 0, 1: 10, 2: 20}, [b"of 0", b"of 1", b"of 2"]
        assert results == dict.fromkeys(range(3), expected)
        assert not handles[0].store("part/").check(["9"])
        with pytest.raises(BootstrapError, match="no answer in 0.01 s"):
            handles[0].store("part/", timeout_s=0.01).get("9")
        asked: list[str] = []

        def hopeless() -> str:
            asked.append("")
            return "in vain" if len(asked) > 2 else ""

        with pytest.raises(BootstrapError, match="in vain"):
            handles[1].store("part/", hopeless=hopeless).get("9")
        # Nobody is asked any more: who would answer may be gone, and its successor be stopped.
        for use_in_vain in (
            lambda store: store.get("0"),
            lambda store: store.check(["0"]),
            lambda store: store.set("0", b""),
        ):
            with pytest.raises(BootstrapError, match="in vain"):
                use_in_vain(handles[1].store("part/", hopeless=hopeless))
        wait_until(lambda: all(handle.clock() is not None for handle in handles), "clocks")
        for handle in handles:
            # One clock: what was measured is noise, within half of the round trip.
            assert abs(handle.clock().offset_ns) <= handle.clock().round_trip_ns
        engines[1].fail()
        wait_until(lambda: all(engine.adopted for engine in engines), "the diagnosis")
        for handle in handles:
            handle.close()
    assert plane_module._plane is before
    alive = 0 if before is None else 1
    wait_until(
        lambda: [one.name for one in threading.enumerate()].count("hccl-control") == alive,
        "the thread ends",
    )


def test_secrets_stay_out_of_the_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_SECRET", "a secret of the job")
    caplog.set_level(logging.DEBUG)
    server = Server()
    stranger = server.dial(1, b"a guess")
    stranger.send(beat(0))
    stranger.turn()
    member = server.dial(1)
    member.send(b"garbage")
    assert member.answers(1)
    shown = f"{caplog.text} {server.control_address} {server.members} {vars(server.plane)}"
    server.close()
    assert "message was dropped" in caplog.text
    for secret in (repr(SECRET), "a guess", "a secret of the job"):
        assert secret not in shown


def starts_with_few_descriptors(rank: int, world_size: int) -> tuple[str, float]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < 256:  # no holes below the limit
        taken.append(os.dup(taken[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 3, limits[1]))
    with pytest.raises(BootstrapError) as caught:
        Communicator(name="first", timeout_s=DEADLINE_S)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with Communicator(name="second") as comm:  # with room again, nothing stands in the way
        data = np.ones(1)
        comm.all_reduce(data)
    return str(caught.value), data[0]


def test_too_few_descriptors_are_an_error_that_names_the_limit() -> None:
    for text, total in run_ranks(starts_with_few_descriptors, 2):
        assert "ulimit -n" in text
        assert total == 2.0


def test_address_that_cannot_be_bound_is_logged_and_the_rest_works(server: Server) -> None:
    control_address = server.plane.control_address("192.0.2.1", None)
    assert (control_address.host, control_address.port) == ("", 0)
    assert "cannot listen on" in control_address.problem
    assert server.dial(1).answers(1)
