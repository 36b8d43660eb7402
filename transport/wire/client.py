"""One connection to a server, redialled whenever it breaks. For one thread."""

import contextlib
import time
from selectors import EVENT_READ, BaseSelector
from typing import Protocol

from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.wire.frames import FramedConnection, WireSettings
from hccl_py.transport.wire.handshake import (
    CONNECTING,
    NotListeningError,
    RejectedError,
    ResetError,
    SecretHandshake,
    start_connecting,
)

_FIRST_REDIAL_S, _LONGEST_REDIAL_S = 0.05, 1.0
_CONNECT_S, _HANDSHAKE_S = 2.0, 10.0


class ClientOwner(Protocol):
    """Events of a client."""

    def on_up(self) -> None:
        """Handle a new connection, on which nothing was sent yet."""

    def on_message(self, message: bytes) -> None:
        """Handle a message."""

    def on_down(self) -> None:
        """Handle the end of a connection or attempt; another attempt follows."""


class WireClient:
    """The client; call `turn` at `next_s` and after each wait.

    Attributes:
        is_up: whether the server is connected.
        was_rejected: since the last connection, an attempt reached a process of another kind.
        was_reset: the last attempt reached a listening process and was reset.
        other_secret: the last attempt reached a server with another secret.
    """

    def __init__(
        self,
        selector: BaseSelector,
        target: tuple[str, int],
        settings: WireSettings,
        owner: ClientOwner,
    ) -> None:
        """Dial at the first turn."""
        self.was_rejected = self.was_reset = self.other_secret = False
        self._selector, self._target, self._settings = selector, target, settings
        self._owner = owner
        self._connection: FramedConnection | None = None
        self._pending: SecretHandshake | None = None
        self._until_s = self._dial_at_s = 0.0
        self._pause_s = _FIRST_REDIAL_S

    @property
    def is_up(self) -> bool:
        """Whether the server is connected."""
        return self._connection is not None

    def send(self, message: bytes) -> None:
        """Send a message, or drop it if there is no connection."""
        if self._connection is not None:
            self._connection.send(message)

    def next_s(self) -> float:
        """Return when to call `turn` at the latest."""
        if self._connection is not None:
            return self._connection.received_s + self._settings.client_silence_s
        return self._dial_at_s if self._pending is None else self._until_s

    def turn(self) -> None:
        """Dial if there is no connection, and end a silent one."""
        if time.monotonic() < self.next_s():
            return
        if self._connection is not None:
            self._connection.end("it is silent")
        elif self._pending is not None:
            self._fail(ResetError("no answer"))
        else:
            self._dial()

    def close(self, linger_s: float) -> None:
        """Close; sent messages may leave for `linger_s`."""
        if self._connection is not None:
            self._connection.close(time.monotonic() + linger_s)
        self._drop_pending()
        self._connection, self._dial_at_s = None, float("inf")

    def close_copies(self) -> None:
        """In a forked child: close the copies of the sockets."""
        if self._connection is not None:
            self._connection.close_copy()
        if self._pending is not None:
            self._pending.close()

    def _dial(self) -> None:
        try:
            dialled = start_connecting(self._target)
        except (NotListeningError, OSError):
            self.was_reset = self.other_secret = False
            self._retry()
            return
        purpose, secret = self._settings.purpose, self._settings.secret
        where = describe_target(self._target)
        self._pending = SecretHandshake(dialled, where, purpose, secret, True)
        self._until_s = time.monotonic() + _CONNECT_S
        self._selector.register(dialled, EVENT_READ, self._advance)
        self._advance()

    def _advance(self) -> None:
        pending = self._pending
        if pending is None:
            return
        was_connecting = pending.step == CONNECTING
        try:
            event = pending.advance()
        except RejectedError as error:
            self._fail(error)
            return
        if was_connecting and pending.step != CONNECTING:
            self._until_s = time.monotonic() + _HANDSHAKE_S
        if event is not None:
            self._selector.modify(pending.socket, event, self._advance)
            return
        self._selector.unregister(pending.socket)
        self._pending = None
        self.was_rejected = self.was_reset = self.other_secret = False
        self._pause_s = _FIRST_REDIAL_S
        limit = self._settings.max_message_bytes
        self._connection = FramedConnection(
            self._selector, pending, limit, self._owner.on_message, self._on_end
        )
        self._owner.on_up()

    def _fail(self, error: RejectedError) -> None:
        assert self._pending is not None
        is_missing = isinstance(error, NotListeningError | ResetError)
        self.was_rejected = self.was_rejected or not is_missing
        self.was_reset = isinstance(error, ResetError) and self._pending.step != CONNECTING
        self.other_secret = not is_missing and self._pending.step == "proof"
        self._drop_pending()
        self._retry()

    def _drop_pending(self) -> None:
        if self._pending is not None:
            with contextlib.suppress(KeyError):  # the loop has ended, and its selector is closed
                self._selector.unregister(self._pending.socket)
            self._pending.close()
            self._pending = None

    def _on_end(self, _reason: str) -> None:
        self._connection = None
        self._retry()

    def _retry(self) -> None:
        self._dial_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_REDIAL_S)
        self._owner.on_down()
