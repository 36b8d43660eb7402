"""The connections of many clients that know one secret. For one thread."""

import itertools
import math
import socket
import time
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector
from typing import Protocol

from hccl_py.transport.network.rejections import unauthenticated_limit
from hccl_py.transport.wire.acceptor import Acceptor
from hccl_py.transport.wire.frames import FramedConnection, WireSettings
from hccl_py.transport.wire.handshake import (
    ClosedError,
    RejectedError,
    ResetError,
    SecretHandshake,
)


class ServerOwner(Protocol):
    """Events of a server's clients, each identified by a route."""

    def on_message(self, route: int, message: bytes) -> None:
        """Handle a client's message."""

    def on_lost(self, route: int) -> None:
        """Handle the end of a client's connection."""

    def num_missing(self) -> int:
        """Return how many expected clients have not connected."""


class WireServer(Acceptor[SecretHandshake]):
    """The server; call `turn` at `next_s` and after each wait."""

    ATTEMPT_S = 10.0

    def __init__(
        self, selector: BaseSelector, settings: WireSettings, who: str, owner: ServerOwner
    ) -> None:
        """Create it without listeners; `who` names this side in the log of rejections."""
        super().__init__([], unauthenticated_limit(), selector, who)
        self._min_unauthenticated = self._max_unauthenticated
        self._settings, self._owner = settings, owner
        self._connections: dict[int, FramedConnection] = {}
        self._routes = itertools.count(1)
        self._beat_s = math.inf

    def listen(self, bound: socket.socket) -> None:
        """Take over and serve a bound socket."""
        bound.setblocking(False)
        bound.listen(2 * self._max_unauthenticated + self._owner.num_missing())
        self._listeners = [bound]
        self._listen()

    def send(self, route: int, message: bytes) -> None:
        """Send a message to a client, if it is connected."""
        if route in self._connections:
            self._connections[route].send(message)

    def rejected(self) -> str:
        """Return how many connections were rejected and why, for an error; "" if none was."""
        return self._rejections.summary()

    def next_s(self) -> float:
        """Return when to call `turn` at the latest."""
        return min(super().next_s(), self._beat_s)

    def turn(self) -> None:
        """Send beats, end silent clients, and drop expired handshakes."""
        self._max_unauthenticated = self._min_unauthenticated + self._owner.num_missing()
        self.tick()
        now_s = time.monotonic()
        if now_s >= self._beat_s:
            self._beat_s = now_s + self._settings.beat_s if self._connections else math.inf
            for connection in tuple(self._connections.values()):
                if now_s >= connection.received_s + self._settings.server_silence_s:
                    connection.end("it is silent")
                else:
                    connection.send(b"")

    def close(self, linger_s: float) -> None:
        """Close; sent messages may leave for `linger_s`."""
        until_s = time.monotonic() + linger_s
        for connection in self._connections.values():
            connection.close(until_s)
        self._connections.clear()
        self._beat_s = math.inf
        self._close_connections()
        for listener in self._listeners:
            listener.close()

    def close_copies(self) -> None:
        """In a forked child: close the copies of the sockets."""
        self._close_copies()
        for connection in self._connections.values():
            connection.close_copy()
        for listener in self._listeners:
            listener.close()

    def _shake_hands(self, accepted: socket.socket, client: str) -> SecretHandshake:
        purpose, secret = self._settings.purpose, self._settings.secret
        return SecretHandshake(accepted, client, purpose, secret, False)

    def _complete(self, pending: SecretHandshake) -> None:
        route = next(self._routes)
        on_message: Callable[[bytes], None] = partial(self._owner.on_message, route)
        limit = self._settings.max_message_bytes
        self._connections[route] = FramedConnection(
            self._selector, pending, limit, on_message, partial(self._on_end, route)
        )
        self._beat_s = min(self._beat_s, time.monotonic() + self._settings.beat_s)

    def _on_end(self, route: int, _reason: str) -> None:
        del self._connections[route]
        self._owner.on_lost(route)

    def _member_failed(self, pending: SecretHandshake, rejection: RejectedError) -> None:
        pass  # it redials

    def _reject(self, pending: SecretHandshake, rejection: RejectedError) -> None:
        if isinstance(rejection, ClosedError | ResetError) and self._owner.num_missing():
            self._give_up(pending)  # a client may end, be cut off, or only probe this process
        else:
            super()._reject(pending, rejection)
