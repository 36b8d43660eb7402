"""Encrypted connections: what is on the wire, who is let in, and streams under pressure."""

import contextlib
import itertools
import socket
import ssl
import threading
import time

import pytest
from quiet_clock import HANG_S

pytest.importorskip("cryptography", reason="TLS needs the extra `tls`")

from hccl_py.transport.bootstrap.tls import Tls, TlsStream
from hccl_py.transport.errors import InvalidArgumentError

TIMEOUT_S = HANG_S


class Relay:
    """Two TCP sockets with an eavesdropper between them."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            pairs = []
            for _ in range(2):
                outer = socket.create_connection(server.getsockname()[:2])
                inner, _ = server.accept()
                pairs.append((outer, inner))
        (self.left, left), (self.right, right) = pairs
        self.heard = bytearray()
        self._lock = threading.Lock()
        for source, target in ((left, right), (right, left)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with source:
            while data := source.recv(65536):
                with self._lock:
                    self.heard += data
                with contextlib.suppress(OSError):  # it was closed while this was on its way
                    target.sendall(data)


def shake_hands(*sides: ssl.SSLSocket) -> None:
    """Run the TLS handshake of both sides on this thread, to the first data."""
    for side in sides:
        side.setblocking(False)
    pending = set(sides)
    deadline_s = time.monotonic() + TIMEOUT_S
    while pending:
        assert time.monotonic() < deadline_s, "the handshake hangs"
        for side in tuple(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue


def exchange(sender: TlsStream, receiver: TlsStream, data: bytes) -> tuple[bytes, int]:
    """Send from one stream to the other; return what came and how often sending had to wait."""
    received = bytearray(len(data))
    num_sent = num_received = num_waits = 0
    deadline_s = time.monotonic() + TIMEOUT_S
    while num_received < len(data):
        assert time.monotonic() < deadline_s, f"{num_received} of {len(data)} bytes came"
        if num_sent < len(data):
            progress = sender.send(memoryview(data)[num_sent:])
            num_waits += progress == 0
            num_sent += progress
        num_received += receiver.receive(memoryview(received)[num_received:])
    return bytes(received), num_waits


def test_tls_bytes_arrive_and_the_wire_shows_none_of_them() -> None:
    relay = Relay()
    one, other = Tls(), Tls()
    one.trust([other.certificate])
    other.trust([one.certificate])
    dialled = one.wrap(relay.left, server_side=False)
    accepted = other.wrap(relay.right, server_side=True)
    shake_hands(dialled, accepted)
    assert dialled.version() == "TLSv1.3"
    a, b = TlsStream(dialled), TlsStream(accepted)
    secret = b"nobody may read this "
    for data in (b"", b"x", secret, secret * 100_001):
        for sender, receiver in ((a, b), (b, a)):
            came, _ = exchange(sender, receiver, data)
            assert came == data
    assert len(relay.heard) > 2 * 100_000 * len(secret)
    assert secret[:8] not in relay.heard
    a.close()
    b.close()


@pytest.mark.parametrize("stranger", [0, 1], ids=["dials", "listens"])
def test_tls_certificate_that_was_not_at_the_rendezvous_is_rejected(stranger: int) -> None:
    ranks = [Tls(), Tls()]
    left, right = socket.socketpair()
    ranks[1 - stranger].trust([Tls().certificate])
    ranks[stranger].trust([ranks[1 - stranger].certificate])
    dialled = ranks[0].wrap(left, server_side=False)
    accepted = ranks[1].wrap(right, server_side=True)
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed|unknown ca"):
        shake_hands(dialled, accepted)
        for side in itertools.islice(itertools.cycle((dialled, accepted)), 100):
            try:
                side.recv(1)
            except ssl.SSLWantReadError:
                continue
    dialled.close()
    accepted.close()


def test_tls_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(InvalidArgumentError, match="pip install "):
        Tls()
