"""Strangers at the coordinator's port: few descriptors, few lines, and members get in meanwhile."""

import os
import resource
import selectors
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from network_resets import reset
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.transport.control.message import ControlAddress, ControlMembers
from hccl_py.transport.control.sockets import ControlSockets
from hccl_py.transport.network.rejections import unauthenticated_limit

TIMEOUT_S = HANG_S
FLOOD = max(300, 100 * int(os.environ.get("HCCL_TEST_ROUNDS", "1")))
SECRET = bytes(range(32))


class Coordinator:
    """The listening process, one member that has met it, and a port to attack. One thread."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: list[bytes] = []
        self.server, self.member = self.sockets(), self.sockets()
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = bound.getsockname()
        self.server.listen(bound)
        self.admit(self.member, bytes(16))
        self.most_open = 0

    def sockets(self) -> ControlSockets:
        return ControlSockets(self.selector, lambda _, message: self.received.append(message))

    def members(self, who: ControlSockets, communicator: bytes) -> ControlMembers:
        here = ControlAddress(self.server.key, "", *self.address)
        there = ControlAddress(who.key, "", "127.0.0.1", 1)
        return ControlMembers(communicator, 0, (here, there), SECRET)

    def admit(self, who: ControlSockets, communicator: bytes) -> ControlMembers:
        """Let the two know each other."""
        members = self.members(who, communicator)
        self.server.admit(members)
        who.admit(replace(members, rank=1))
        return members

    def turn(self) -> bool:
        for ready, _ in self.selector.select(0.01):
            ready.data()
        self.server.tick()
        self.member.tick()
        self.most_open = max(self.most_open, open_descriptors())
        return True

    def hear(self, who: ControlSockets, message: bytes) -> None:
        def is_heard() -> bool:
            who.send(self.server.key, message)
            who.tick()
            return self.turn() and message in self.received

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


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    before = open_descriptors()
    made = Coordinator()
    made.hear(made.member, b"first")
    yield made
    made.member.close()
    made.server.close()
    made.selector.close()
    assert open_descriptors() <= before


def test_strangers_flood_of_silent_clients_takes_few_descriptors_and_members_get_in(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    calm = open_descriptors()
    coordinator.most_open = 0
    late = coordinator.sockets()
    coordinator.admit(late, b"of the late one.")
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
    assert most_mine <= 3 * unauthenticated_limit() + 64
    for client in clients:
        client.close()
    late.close()
    told = [record.getMessage() for record in caplog.records]
    assert 1 <= len(told) <= 16
    assert "the control plane rejected a connection from 127.0.0.1:" in told[0]


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
        coordinator.turn()
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
        (os.urandom(300), "does not speak this protocol"),
        (b"HCCL-CT1" + b"\1" * 56, "it names a communicator or rank that is not here"),
        (b"", "it closed the connection"),
    ],
    ids=["random bytes", "another communicator", "nothing"],
)
def test_strangers_stranger_is_rejected_and_logged_with_its_address(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, garbage: bytes, reason: str
) -> None:
    with socket.socket() as client:
        client.bind(("127.0.0.9", 0))
        client.connect(coordinator.address)
        name = "{}:{}".format(*client.getsockname())
        client.sendall(garbage)
        if not garbage:
            client.shutdown(socket.SHUT_WR)
        coordinator.turn_until_hung_up(client)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the control plane rejected a connection from {name}: ")
    assert reason in record.getMessage()


def test_strangers_member_that_ends_before_it_is_read_is_heard_and_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.hear(coordinator.member, b"before")
    coordinator.member.send(coordinator.server.key, b"in a hurry")
    coordinator.member.close()
    wait_until(lambda: coordinator.turn() and b"in a hurry" in coordinator.received, "its word")
    assert not caplog.records


def test_strangers_member_that_comes_after_its_communicator_ended_is_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    late = coordinator.sockets()
    coordinator.server.dismiss(coordinator.admit(late, b"it ended already"))
    late.send(coordinator.server.key, b"late")
    wait_until(lambda: coordinator.turn() and bool(late._dial_at_s), "it is turned away")
    late.close()
    assert not caplog.records


@pytest.mark.parametrize("is_reset", [False, True])
def test_strangers_member_that_ends_while_it_connects_is_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture, is_reset: bool
) -> None:
    with socket.create_connection(coordinator.address) as client:
        coordinator.turn()
        client.sendall(b"HCCL")
        if is_reset:
            reset(client.fileno())
    for _ in range(20):
        coordinator.turn()
    assert not caplog.records


def test_strangers_member_that_ends_after_its_hello_is_not_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    member = coordinator.sockets()
    coordinator.admit(member, b"it ends at once.")
    member.send(coordinator.server.key, b"never")
    pending = coordinator.server._unauthenticated
    wait_until(
        lambda: coordinator.turn() and any(one.is_named for one in pending), "it said who it is"
    )
    member.close()
    wait_until(lambda: coordinator.turn() and not pending, "it is gone")
    assert not caplog.records
