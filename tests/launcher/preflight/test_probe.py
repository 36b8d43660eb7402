"""The way to another node over loopback, and what a stranger gets there: a hello, nothing more."""

import os
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest
from quiet_clock import HANG_S, Moment

from hccl_py.launcher.preflight.node import probe as probing
from hccl_py.launcher.preflight.node.probe import PURPOSE, Target, probe
from hccl_py.launcher.preflight.node.server import PairServer
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.wire.handshake import SecretHandshake

SECRET = secrets.token_bytes(32)
HELLO_BYTES, PROOF_BYTES = 40, 32


@pytest.fixture
def port() -> Iterator[int]:
    before = set(threading.enumerate())
    with PairServer(SECRET) as server:
        yield server.listen("127.0.0.1", [0])
    assert set(threading.enumerate()) <= before  # an earlier test's thread may end meanwhile


def target(port: int, host: str = "127.0.0.1", path: int | None = 0) -> Target:
    return Target(node=1, path=path, interface="", source=host, host=host, port=port)


def test_probe_of_a_node_of_this_job_is_good(port: int) -> None:
    result = probe(target(port), SECRET)
    assert (result["outcome"], result["detail"]) == ("good", "")


def test_probe_with_another_secret_learns_nothing(port: int) -> None:
    result = probe(target(port), b"another")
    assert result["outcome"] == "broken"
    assert "closed" in result["detail"]


def test_probe_of_a_closed_port_is_rejected_and_of_another_program_is_a_stranger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(HELLO_BYTES)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian".ljust(HELLO_BYTES))

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert probe(target(port), SECRET)["outcome"] == "wrong peer"
        greeting.join()
    assert probe(target(port), SECRET)["outcome"] == "rejected"


def test_probe_whose_bytes_never_come_is_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "STALL_S", 0.2)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as other:
        # Proves the secret, as a node behind an MTU black hole does, and gets no further.
        def hold() -> None:
            connection, _ = other.accept()
            SecretHandshake(connection, "", PURPOSE, SECRET, False).prove(Deadline(10))
            is_over.wait(HANG_S)
            connection.close()

        holding = threading.Thread(target=hold)
        holding.start()
        result = probe(target(other.getsockname()[1]), SECRET)
        is_over.set()
        holding.join()
    assert result["outcome"] == "stalled"


def test_stranger_gets_a_hello_and_is_dropped_at_the_first_wrong_proof(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n".ljust(HELLO_BYTES))
        assert stranger.recv(HELLO_BYTES) == b""
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(PURPOSE + bytes(32))
        hello = stranger.recv(HELLO_BYTES)
        assert len(hello) == HELLO_BYTES
        stranger.sendall(bytes(PROOF_BYTES))
        assert stranger.recv(1) == b""


def test_hello_that_is_sent_back_proves_nothing(port: int) -> None:
    """A reflection: the stranger has the server sign for it on a second connection."""
    with socket.create_connection(("127.0.0.1", port), 10) as first:
        first.sendall(PURPOSE + bytes(32))
        hello = first.recv(HELLO_BYTES)
        with socket.create_connection(("127.0.0.1", port), 10) as second:
            second.sendall(hello)
            second.recv(HELLO_BYTES)
            second.sendall(bytes(PROOF_BYTES))
            assert second.recv(PROOF_BYTES) == b""


def test_close_ends_silent_connections_at_once() -> None:
    server = PairServer(SECRET)
    port = server.listen("127.0.0.1", [0])
    with socket.create_connection(("127.0.0.1", port), 10) as silent:
        silent.sendall(PURPOSE + bytes(32))
        silent.recv(HELLO_BYTES)
        began = Moment.now()
        server.close()
        server.close()
        assert Moment.now() - began < 2
        assert silent.recv(1) == b""


def test_listen_takes_the_first_free_port_of_a_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, PairServer(SECRET) as server:
        first = taken.getsockname()[1]
        with pytest.raises(OSError, match=os.strerror(98)):
            server.listen("127.0.0.1", [first])
        assert server.listen("127.0.0.1", [first, 0]) != first
