"""Clients and strangers of a server on the wire."""

import logging
import secrets
import selectors
import socket
from collections.abc import Callable, Iterator

import pytest
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.transport.wire.client import WireClient
from hccl_py.transport.wire.frames import WireSettings
from hccl_py.transport.wire.handshake import NONCE_BYTES
from hccl_py.transport.wire.server import WireServer

PURPOSE = b"HCCL-TST"
SETTINGS = WireSettings(PURPOSE, secrets.token_bytes(32), 1 << 20, 3.0, 60.0, 60.0)


class Owner:
    """Notes what it is told, on either side."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.routes: list[int] = []
        self.lost: list[int] = []
        self.missing = self.num_up = self.num_down = 0

    def on_message(self, *message: int | bytes) -> None:
        *route, text = message
        self.routes += route  # type: ignore[arg-type]
        self.messages.append(text)  # type: ignore[arg-type]

    def on_lost(self, route: int) -> None:
        self.lost.append(route)

    def num_missing(self) -> int:
        return self.missing

    def on_up(self) -> None:
        self.num_up += 1

    def on_down(self) -> None:
        self.num_down += 1


class Network:
    """A server and its clients in one thread."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.owner = Owner()
        self.server = self.serve(0)
        self.clients: list[WireClient] = []

    def serve(self, port: int, settings: WireSettings = SETTINGS) -> WireServer:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        self.address = bound.getsockname()[:2]
        server = WireServer(self.selector, settings, "the server", self.owner)
        server.listen(bound)
        return server

    def dial(self, settings: WireSettings = SETTINGS) -> tuple[WireClient, Owner]:
        owner = Owner()
        client = WireClient(self.selector, self.address, settings, owner)
        self.clients.append(client)
        return client, owner

    def turn(self) -> bool:
        for ready, _ in self.selector.select(0.005):
            ready.data()
        for one in (self.server, *self.clients):
            one.turn()
        return True

    def await_that(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: self.turn() and bool(condition()), "it happens", HANG_S)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.server.close(0)
    for client in made.clients:
        client.close(0)


def test_client_and_server_exchange_messages(network: Network) -> None:
    client, its = network.dial()
    network.await_that(lambda: client.is_up)
    client.send(b"question")
    network.await_that(lambda: network.owner.messages == [b"question"])
    network.server.send(network.owner.routes[0], b"answer")
    network.await_that(lambda: its.messages == [b"answer"])
    client.close(0)
    network.await_that(lambda: network.owner.lost == network.owner.routes)
    network.server.send(network.owner.routes[0], b"to nobody")


def test_client_comes_back_to_a_server_that_is_there_again(network: Network) -> None:
    client, its = network.dial()
    network.await_that(lambda: client.is_up)
    network.server.close(0)
    network.await_that(lambda: its.num_down > 2)
    assert not client.is_up
    assert not client.was_rejected, "nobody was there"
    network.server = network.serve(network.address[1])
    network.await_that(lambda: its.num_up == 2)


def test_client_with_another_secret_gets_nothing(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hccl_py.transport")
    wrong, its = network.dial(SETTINGS._replace(secret=b"a guess"))
    network.await_that(lambda: wrong.other_secret)
    assert wrong.was_rejected
    assert (its.num_up, its.messages) == (0, [])
    assert "HCCL_SECRET differs" in caplog.text
    right, _ = network.dial()
    network.await_that(lambda: right.is_up)


def test_client_of_another_purpose_and_foreign_programs_are_rejected(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hccl_py.transport")
    wrong, _ = network.dial(SETTINGS._replace(purpose=b"HCCL-OTH"))
    with socket.create_connection(network.address) as foreign:
        foreign.sendall(b"GET / HTTP/1.1\r\n".ljust(100))
        network.await_that(lambda: wrong.was_rejected)
    assert not wrong.other_secret
    assert "does not speak this protocol" in caplog.text


@pytest.mark.parametrize("missing", [0, 1])
def test_connection_that_says_nothing_and_closes_is_a_stranger_once_all_are_there(
    network: Network, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hccl_py.transport")
    network.owner.missing = missing
    with socket.create_connection(network.address):
        network.turn()
    other, _ = network.dial()
    network.await_that(lambda: other.is_up)
    network.await_that(lambda: bool(caplog.text) == (not missing))


@pytest.mark.parametrize("missing", [0, 1])
def test_client_that_ends_after_its_hello_is_no_stranger_while_one_is_missing(
    network: Network, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hccl_py.transport")
    network.owner.missing = missing
    pending = network.server._unauthenticated
    with socket.create_connection(network.address) as connection:
        connection.sendall(PURPOSE + bytes(NONCE_BYTES))
        network.await_that(lambda: any(one.is_named for one in pending))
    network.await_that(lambda: not pending)
    assert bool(caplog.text) == (not missing)


def test_client_that_is_silent_is_lost_and_a_silent_server_is_dialled_again() -> None:
    network = Network()
    network.server.close(0)
    brief = SETTINGS._replace(beat_s=0.02, client_silence_s=0.3, server_silence_s=0.3)
    network.server = network.serve(0, brief)
    client, its = network.dial(brief)
    network.await_that(lambda: client.is_up)
    for _ in range(30):  # beats alone keep it
        network.turn()
    assert (its.num_up, network.owner.lost) == (1, [])
    network.clients.clear()  # nobody looks at its time any more, and it answers no beat
    network.selector.modify(client_socket(network, client), selectors.EVENT_READ, lambda: None)
    network.await_that(lambda: network.owner.lost)
    network.clients.append(client)
    network.await_that(lambda: its.num_up == 2)
    network.server.close(0)
    client.close(0)


def client_socket(network: Network, client: WireClient) -> socket.socket:
    """Return the end of its connection that the client has."""
    return next(
        one
        for one in (key.fileobj for key in tuple(network.selector.get_map().values()))
        if isinstance(one, socket.socket)
        and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        and one.getpeername() == network.address
    )
