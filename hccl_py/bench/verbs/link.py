"""How the two ends of hccl-perftest talk about the test, beside the queue pair that is tested.

`multiprocessing.connection` does the framing and the HMAC challenge; messages are msgpack.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import msgpack  # type: ignore[import-untyped]

_TIMEOUT_S = 60.0
_RETRY_S = 0.05
_SILENCE_S = 10
"""How long the other end may take to prove that it knows the secret."""


class LinkError(RuntimeError):
    """The other end is not there, not the right one, or failed."""


class Link:
    """A connection to the other end. A context manager."""

    def __init__(self, connection: Connection) -> None:
        """Take over an authenticated connection."""
        self._connection = connection

    def __enter__(self) -> Link:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self._connection.close()

    def send(self, message: Any) -> None:
        """Send what msgpack can pack."""
        try:
            self._connection.send_bytes(msgpack.packb(message))
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from error

    def receive(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Receive one message.

        Raises:
            LinkError: none came in time, or the other end is gone.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise LinkError(f"the other end said nothing for {timeout_s:g} s")
            return msgpack.unpackb(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise LinkError("the other end has ended; see its output") from error


def listen(port: int) -> socket.socket:
    """Listen on all addresses of the host, IPv6 too where there is any."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)


def accept(listener: socket.socket, secret: bytes) -> Link:
    """Wait for a client that knows the secret; use its way here for the test as well."""
    connected, _ = listener.accept()
    who = "a client did not prove that it knows HCCL_SECRET; it was turned away"
    address = connected.getsockname()[0]
    return _authenticated(connected, address, secret, (deliver_challenge, answer_challenge), who)


def dial(host: str, port: int, secret: bytes, timeout_s: float) -> Link:
    """Connect with the server, which may still be starting."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=timeout_s)
            break
        except OSError as error:
            if time.monotonic() > until_s:
                raise LinkError(f"no server at {host} port {port}: {error}") from error
            time.sleep(_RETRY_S)
    who, address = "the server has another HCCL_SECRET", connected.getpeername()[0]
    return _authenticated(connected, address, secret, (answer_challenge, deliver_challenge), who)


def _authenticated(
    connected: socket.socket,
    address: str,
    secret: bytes,
    steps: Sequence[Callable[[Connection, bytes], None]],
    problem: str,
) -> Link:
    """Prove to each other that both ends know the secret.

    Raises:
        LinkError: with `problem`.
    """
    connection = _prepared(connected, address)
    try:
        for step in steps:
            step(connection, secret)
    except (AuthenticationError, EOFError, OSError) as error:
        connection.close()
        raise LinkError(problem) from error
    return Link(connection)


def _prepared(connected: socket.socket, address: str) -> Connection:
    """Bound every wait of a new connection, and make it "the rendezvous" of interfaces.py."""
    os.environ.setdefault("MASTER_ADDR", address.removeprefix("::ffff:"))
    connected.settimeout(None)
    # The authentication of multiprocessing knows no deadline of its own.
    limit = struct.pack("ll", _SILENCE_S, 0)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return Connection(connected.detach())
