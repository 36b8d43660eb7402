"""Messages over an authenticated connection: sealed, numbered, and of bounded length.

    frame    length: 4 bytes | tag: 16 bytes | content, encrypted

Both ends derive their keys from the handshake. A frame that is changed, lost or repeated on the way
ends the connection. The content is XORed with SHAKE-256 of key and number, and the tag is an HMAC
of both: Python's standard library has no cipher.
"""

import contextlib
import hashlib
import hmac
import socket
import struct
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import NamedTuple

from hccl_py.transport.wire.handshake import Handshake

_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_TAG_BYTES = 16
_READ_BYTES = 64 << 10
_QUEUED_MESSAGES = 16  # longest messages queued for a peer that does not read


class WireSettings(NamedTuple):
    """The settings that both ends of a connection agree on.

    Attributes:
        purpose: the first 8 bytes on each connection.
        secret: both ends prove that they know it.
        max_message_bytes: a connection that announces a longer message is closed.
        beat_s: longest interval between messages of the server; the client answers each beat.
        client_silence_s: time without a message after which the client redials.
        server_silence_s: time without a message after which the server drops a client.
    """

    purpose: bytes
    secret: bytes
    max_message_bytes: int
    beat_s: float
    client_silence_s: float
    server_silence_s: float

    def __repr__(self) -> str:
        """Leave out the secret."""
        return f"WireSettings(purpose={self.purpose!r})"


class DamagedError(Exception):
    """A frame differs from the one that the peer sealed."""


class Seal:
    """Seals or opens the messages of one direction, in order."""

    def __init__(self, session: bytes, side: bytes) -> None:
        """Derive the keys of the direction that begins at `side`."""
        self._cipher, self._mac = (
            hmac.digest(session, side + use, "sha256") for use in (b" cipher", b" mac")
        )
        self._number = 0

    def seal(self, content: bytes) -> bytes:
        """Return a frame."""
        number = self._next()
        hidden = self._hide(number, content)
        return _LENGTH.pack(_TAG_BYTES + len(hidden)) + self._tag(number, hidden) + hidden

    def open(self, sealed: bytes) -> bytes:
        """Return the content of a frame given without its length; raise DamagedError."""
        number = self._next()
        tag, hidden = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(number, hidden)):
            raise DamagedError("a message was changed on its way")
        return self._hide(number, hidden)

    def _next(self) -> bytes:
        self._number += 1
        return _NUMBER.pack(self._number)

    def _hide(self, number: bytes, content: bytes) -> bytes:
        mask = hashlib.shake_256(self._cipher + number).digest(len(content))
        hidden = int.from_bytes(content, "big") ^ int.from_bytes(mask, "big")
        return hidden.to_bytes(len(content), "big")

    def _tag(self, number: bytes, hidden: bytes) -> bytes:
        return hmac.digest(self._mac, number + hidden, "sha256")[:_TAG_BYTES]


class FramedConnection:
    """One end of a connection, whose callbacks a selector's loop calls.

    Attributes:
        address: the other end, for messages.
        received_s: when a byte was last received, by `time.monotonic`.
        is_closed: whether it has ended.
    """

    def __init__(
        self,
        selector: BaseSelector,
        handshake: Handshake,
        max_message_bytes: int,
        on_message: Callable[[bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Take over the socket of a complete handshake; `on_end` gets the reason, once."""
        self.address = handshake.address
        self.received_s = time.monotonic()
        self._selector, self._socket = selector, handshake.socket
        self._dialled = handshake.dialled
        sides = (b"connector", b"acceptor") if handshake.dialled else (b"acceptor", b"connector")
        self._sealing, self._opening = (Seal(handshake.session, side) for side in sides)
        self._max_bytes = max_message_bytes + _TAG_BYTES
        self._on_message, self._on_end = on_message, on_end
        self._unsent, self._received = bytearray(), bytearray()
        self.is_closed = False
        handshake.closed = True  # this object owns the socket
        selector.register(self._socket, EVENT_READ, self._on_ready)

    def send(self, message: bytes) -> None:
        """Send a message now or once the peer reads; an empty one is a beat."""
        if self.is_closed:
            return
        was_empty = not self._unsent
        self._unsent += self._sealing.seal(message)
        if was_empty:
            self._flush()
        if len(self._unsent) > _QUEUED_MESSAGES * self._max_bytes:
            self.end("it does not read what it is sent")

    def end(self, reason: str) -> None:
        """Close, and pass the reason to `on_end`."""
        if not self.is_closed:
            self.close()
            self._on_end(reason)

    def close(self, until_s: float = 0.0) -> None:
        """Close; sent messages may leave until `until_s`. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(KeyError):  # the loop has ended, and its selector is closed
            self._selector.unregister(self._socket)
        try:
            if self._unsent and until_s > time.monotonic():
                self._socket.settimeout(until_s - time.monotonic())
                self._socket.sendall(self._unsent)
            self._socket.shutdown(socket.SHUT_WR)
            # Unread bytes would turn the close into a reset, which discards sent messages.
            self._socket.setblocking(False)
            while self._socket.recv(_READ_BYTES):
                pass
        except OSError:
            pass
        self._socket.close()

    def close_copy(self) -> None:
        """In a forked child: close the copy of the socket."""
        self.is_closed = True
        self._socket.close()

    def _on_ready(self) -> None:
        self._flush()
        if self.is_closed:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(f"the connection broke: {error.strerror or error}")
            return
        if not data:
            self.end("it closed the connection")
            return
        self.received_s = time.monotonic()
        self._received += data
        self._take_whole()

    def _take_whole(self) -> None:
        while not self.is_closed and len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if not _TAG_BYTES <= length <= self._max_bytes:
                self.end(f"it announced a message of {length} bytes")
                return
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            sealed = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                message = self._opening.open(sealed)
            except DamagedError as error:
                self.end(str(error))
                return
            if message:
                self._on_message(message)
            elif self._dialled:
                self.send(b"")

    def _flush(self) -> None:
        if not self._unsent:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:  # what the other end sent before is still to be read, and then the end
            self._unsent.clear()
        events = EVENT_READ | EVENT_WRITE if self._unsent else EVENT_READ
        if self._selector.get_key(self._socket).events != events:
            self._selector.modify(self._socket, events, self._on_ready)
