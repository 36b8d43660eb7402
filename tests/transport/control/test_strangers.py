"""Strangers at the coordinator's port: few descriptors, few lines, and members get in meanwhile."""

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.transport.control.message import ControlAddress
from hccl_py.transport.control.sockets import ControlSockets
from hccl_py.transport.network.rejections import stranger_limit

TIMEOUT_S = HANG_S
FLOOD = max(300, 100 * int(os.environ.get("HCCL_TEST_ROUNDS", "1")))


class Coordinator:
    """The listening process, one member that has met it, and a port to attack."""

    def __init__(self) -> None:
        self.server, self.member = ControlSockets(zmq.Poller()), ControlSockets(zmq.Poller())
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = bound.getsockname()
        self.server.listener.listen(bound)
        self.control_address = ControlAddress(self.server.public_key, "", *self.address)
        self.admit(self.member)
        self.most_open = 0

    def admit(self, who: ControlSockets) -> None:
        """Let the two know each other."""
        self.server.admit(ControlAddress(who.public_key, "", "127.0.0.1", 1))
        who.admit(self.control_address)

    def turn(self) -> list[bytes]:
        self.server.poller.poll(10)
        received = [message for _, message in self.server.receive()]
        self.most_open = max(self.most_open, open_descriptors())
        return received

    def hear(self, who: ControlSockets, message: bytes) -> None:
        def is_heard() -> bool:
            who.send(self.control_address.key, message)
            return message in self.turn()

        wait_until(is_heard, "a member is heard", TIMEOUT_S)

    def turn_until_hung_up(self, client: socket.socket) -> None:
        def is_hung_up_on() -> bool:
            self.turn()
            try:
                return client.recv(4096) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        client.setblocking(False)
        wait_until(is_hung_up_on, "a stranger is hung up on", TIMEOUT_S)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def await_descriptors(number: int) -> None:
    wait_until(lambda: open_descriptors() <= number, "a connection closes", TIMEOUT_S)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    before = open_descriptors()
    made = Coordinator()
    made.hear(made.member, b"first")
    yield made
    made.member.close()
    made.server.close()
    assert open_descriptors() <= before


def test_strangers_flood_of_silent_clients_takes_few_descriptors_and_members_get_in(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    calm = open_descriptors()
    coordinator.most_open = 0
    late = ControlSockets(zmq.Poller())
    coordinator.admit(late)
    clients = []
    most_mine = 0
    for number in range(FLOOD):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(coordinator.address)
        clients.append(client)
        if number % 50 == 49:
            coordinator.turn()
            most_mine = max(most_mine, coordinator.most_open - len(clients) - calm)
    coordinator.hear(coordinator.member, b"still here")
    coordinator.hear(late, b"came in the middle of it")
    # The limit, what waited for it in the backlog, and what came before the door was shut.
    assert most_mine <= 3 * stranger_limit() + 64
    for client in clients:
        client.close()
    late.close()
    told = [record.getMessage() for record in caplog.records]
    assert 1 <= len(told) <= 16
    assert "the coordinator rejected a connection from 127.0.0.1:" in told[0]


def test_strangers_without_a_free_descriptor_serves_on(coordinator: Coordinator) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.create_connection(coordinator.address) for _ in range(4)]
    for client in clients[:2]:
        coordinator.turn()
        client.sendall(b"\xff" * 200)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 30, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        for client in clients[2:]:
            client.sendall(b"\xff" * 200)
        coordinator.server.poller.poll(10)
        coordinator.server.receive()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for client in clients:
        coordinator.turn_until_hung_up(client)
        client.close()
    coordinator.hear(coordinator.member, b"still here")


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (os.urandom(300), ""),
        (b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48), "does not speak this protocol"),
        (b"", "it closed the connection, or sent nothing"),
    ],
    ids=["random bytes", "no CURVE", "nothing"],
)
def test_strangers_stranger_is_rejected_and_logged_with_its_address(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, garbage: bytes, reason: str
) -> None:
    client = socket.create_connection(coordinator.address)
    name = "{}:{}".format(*client.getsockname())
    client.sendall(garbage)
    if not garbage:
        client.shutdown(socket.SHUT_WR)
    coordinator.turn_until_hung_up(client)
    client.close()
    wait_until(lambda: bool(coordinator.turn() or caplog.records), "it is logged", TIMEOUT_S)
    (record,) = caplog.records
    # A connection that is over by the time we look has no address any more.
    told = record.getMessage().replace("an unknown address", name)
    assert told.startswith(f"the coordinator rejected a connection from {name}: ")
    assert reason in record.getMessage()


def test_strangers_member_that_ends_before_it_is_read_is_seen_and_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_descriptors()
    brief = ControlSockets(zmq.Poller())
    coordinator.admit(brief)
    brief.send(coordinator.control_address.key, b"in a hurry")
    closing = threading.Thread(target=brief.close)
    closing.start()
    while closing.is_alive():  # its message leaves once its key is accepted
        coordinator.server.answer_zap()
    await_descriptors(before)  # ZeroMQ has closed its end; nobody has read the message
    assert b"in a hurry" in coordinator.turn()
    assert not caplog.records


def test_strangers_member_that_comes_after_its_communicator_ended_is_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    late = ControlSockets(zmq.Poller())
    coordinator.admit(late)
    coordinator.server.dismiss([late.public_key])
    coordinator.hear(late, b"late")  # for the control plane to ignore
    late.close()
    assert not caplog.records


def test_strangers_member_that_ends_while_it_connects_is_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.server.admit(ControlAddress(b"k" * 40, "", "127.0.0.1", 1))
    before = open_descriptors()
    client = socket.create_connection(coordinator.address)
    client.sendall(b"\xff" + bytes(8) + b"\x7f\x03")
    client.close()
    await_descriptors(before)
    coordinator.turn()
    assert not caplog.records


def test_strangers_message_longer_than_allowed_ends_its_connection_only(
    coordinator: Coordinator,
) -> None:
    with contextlib.suppress(zmq.ZMQError):
        coordinator.member.send(coordinator.control_address.key, bytes(5 << 20))
    deadline_s = time.monotonic() + 1.0
    while time.monotonic() < deadline_s:
        assert not any(len(message) > 1000 for message in coordinator.turn())
    coordinator.hear(coordinator.member, b"still here")
