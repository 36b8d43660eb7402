"""The control connection between the two ends of hccl-perftest, beside the tested queue pair.

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

from hccl_py.transport.errors import BootstrapError

_TIMEOUT_S = 60.0
_DIAL_S, _RETRY_S = 10.0, 0.05
_SILENCE_S = 10
"""The longest wait for each answer of the authentication."""


class Link:
    """A connection to the other end. A context manager; every method may raise BootstrapError."""

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
        """Send a message that msgpack can pack."""
        try:
            self._connection.send_bytes(msgpack.packb(message))
        except OSError as error:
            raise BootstrapError(f"cannot send to the other end: {error}") from error

    def receive(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Receive one message."""
        try:
            if not self._connection.poll(timeout_s):
                raise BootstrapError(f"no message from the other end within {timeout_s:g} s")
            return msgpack.unpackb(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise BootstrapError("the other end closed the connection; see its output") from error

    def exchange(self, message: Any) -> Any:
        """Send a message and receive that of the other end, which does the same."""
        self.send(message)
        return self.receive()


def accept(port: int, secret: bytes) -> Link:
    """Wait on all addresses of the host for a client that knows the secret."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=dual) as listener:
        print(f"hccl-perftest: waiting for a client on port {port}", flush=True)
        connected, _ = listener.accept()
    address = connected.getsockname()[0]
    steps = (deliver_challenge, answer_challenge)
    return _authenticated(connected, address, secret, steps, "a client has another HCCL_SECRET")


def dial(host: str, port: int, secret: bytes) -> Link:
    """Connect with the server; retries for 10 s, because it may still be starting."""
    until_s = time.monotonic() + _DIAL_S
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=_DIAL_S)
            break
        except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
            if isinstance(error, UnicodeError) or time.monotonic() > until_s:
                raise BootstrapError(f"no server at {host} port {port}: {error}") from error
            time.sleep(_RETRY_S)
    address = connected.getpeername()[0]
    steps = (answer_challenge, deliver_challenge)
    return _authenticated(connected, address, secret, steps, "the server has another HCCL_SECRET")


def _authenticated(
    connected: socket.socket,
    address: str,
    secret: bytes,
    steps: Sequence[Callable[[Connection, bytes], None]],
    problem: str,
) -> Link:
    """Authenticate both ends by the secret; queue pairs connect through `address` too."""
    os.environ.setdefault("MASTER_ADDR", address.removeprefix("::ffff:"))
    connected.settimeout(None)
    # The authentication of multiprocessing has no deadline of its own.
    limit = struct.pack("ll", _SILENCE_S, 0)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection = Connection(connected.detach())
    try:
        for step in steps:
            step(connection, secret)
    except (AuthenticationError, EOFError, OSError) as error:
        connection.close()
        raise BootstrapError(problem) from error
    return Link(connection)
