"""A non-blocking connection, on which two ranks prove to each other who they are.

    step          connector                      acceptor
    hello, proof  as `wire/handshake.py` says
    acknowledge   one byte              <->      one byte           same node: with segment,
                                                                    doorbell and arena

An acknowledgement carries the number of messages received from the other rank (`full_mesh.py`). The
hello names the communicator and the connection, and no identity follows: the communicator's random
id implies one list of members, in which every rank has found itself.
"""

import os
import secrets
import socket
import struct
from collections.abc import Callable, Generator
from selectors import EVENT_READ, EVENT_WRITE
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import TypeVar

from hccl_py.transport.bootstrap.tls import TlsStream
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.network.identity import PROTOCOL_VERSION
from hccl_py.transport.network.sockets import Connection, peer_process
from hccl_py.transport.threads import is_of_signal_handler
from hccl_py.transport.wire.handshake import (
    NONCE_BYTES,
    ClosedError,
    Handshake,
    RejectedError,
    ResetError,
    Steps,
)

JOINED = 9
"""The progress of a rank that needs no message: all ranks have all their connections."""
_MAGIC = b"HCCL-PY\0"
_CONNECTOR, _ACCEPTOR = 1, 2
_HELLO = struct.Struct("!8sHHIIII16s32s")
_ACKNOWLEDGE = ord("A")  # plus the progress
# A silent host is noticed within about 45 s, whether data is in flight or not.
_WATCH_OPTIONS = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 6,
    socket.TCP_USER_TIMEOUT: 45_000,
}

T = TypeVar("T")


class NotNowError(RejectedError):
    """A member dialled too early, or this rank dials the same connection itself."""


class PendingConnection(Handshake):
    """A socket in the handshake of two ranks.

    Attributes:
        socket: replaced by its TLS wrapper where there is one.
        key: the connection that it claims to be until `authenticated`; None before the hello.
        progress: how many messages the peer had from this rank when it acknowledged, or `JOINED`.
    """

    def __init__(
        self,
        world: World,
        connection: socket.socket,
        address: str,
        wanted: Key | Callable[[Key], bool],
        progress_with: Callable[[Key], int] = lambda key: 0,
    ) -> None:
        """Take over a socket; `wanted` is the dialled key, or decides which ones to accept.

        `progress_with` returns this rank's own `progress` with the peer.
        """
        self.world = world
        self.key = wanted if isinstance(wanted, Key) else None
        self.progress = 0
        self._wanted, self._progress_with = wanted, progress_with
        super().__init__(connection, address, dialled=isinstance(wanted, Key))

    def go_on_with(self, steps: Steps) -> None:
        """Have `advance` run these steps, after the handshake or instead of earlier ones."""
        self._steps = steps

    def check(self) -> None:
        """Check a complete connection; RejectedError: it was lost, or the peer closed it."""
        try:
            if not socket.socket.recv(self.socket, 1, socket.MSG_PEEK):  # TLS itself cannot peek
                raise ClosedError("it closed the connection")
        except BlockingIOError:
            return
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            raise ResetError(f"the connection broke: {error.strerror}") from error

    def _run(self) -> Steps:
        if isinstance(self._wanted, Key):
            yield from self.await_connection()
            yield from self._secure(server_side=False)
            yield from self.connect(self._wanted)
        else:
            yield from self._secure(server_side=True)
            yield from self.accept(self._wanted)
        assert self.key is not None
        if isinstance(self.socket, SSLSocket):
            expected = self.world.members[self.key.rank].certificate
            if self.socket.getpeercert(binary_form=True) != expected:
                raise RejectedError("its TLS certificate is not the one of its peer info")
        if self.key.index == CONTROL:
            # Not on a lane: its window may be closed for minutes, which the user timeout would take
            # for a dead peer.
            self.watch_host(_WATCH_OPTIONS)

    def _secure(self, *, server_side: bool) -> Steps:
        if self.socket.family == socket.AF_UNIX:
            _, user = peer_process(self.socket)
            if user != os.geteuid():
                raise RejectedError(f"it belongs to user {user}, this process to {os.geteuid()}")
            return
        # Before the handshake, which Nagle's algorithm would delay by 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.world.tls is not None:
            self.socket = secured = self.world.tls.wrap(self.socket, server_side=server_side)
            yield from self.when_ready(EVENT_READ, secured.do_handshake)

    def connect(self, key: Key) -> Steps:
        """Run the side that dialled."""
        self.key = key

        def check(answer: bytes) -> None:
            if self._read_hello(answer, _ACCEPTOR) != key:
                raise RejectedError("it answered for another connection")

        yield from self.prove_connecting(self._hello(_CONNECTOR, key), check, self.world.sign)
        yield from self._conclude()

    def accept(self, is_expected: Callable[[Key], bool]) -> Steps:
        """Run the side that was dialled; `is_expected` decides whether to accept."""

        def answer_to(hello: bytes) -> bytes:
            key = self._read_hello(hello, _CONNECTOR)
            if not (key.rank < len(self.world.members) and is_expected(key)):
                raise RejectedError("it claims to be a connection that is not expected here")
            self.key = key
            return self._hello(_ACCEPTOR, key)

        yield from self.prove_accepting(_HELLO.size, answer_to, self.world.sign)
        yield from self._conclude()

    def _conclude(self) -> Steps:
        assert self.key is not None
        self.step = "acknowledge"
        passed = self.world.segment if self.world.is_local(self.key.rank) else ()
        mine = self._progress_with(self.key)
        yield from self.send(bytes([_ACKNOWLEDGE + mine]), passed)
        (theirs,) = yield from self.receive(1, len(passed))
        self.progress = theirs - _ACKNOWLEDGE
        if not 0 <= self.progress <= JOINED:
            raise RejectedError("it did not acknowledge")
        if len(self.descriptors) != len(passed):
            raise RejectedError(f"it passed {len(self.descriptors)} descriptors, not {len(passed)}")

    def _hello(self, role: int, key: Key) -> bytes:
        ranks = self.world.rank, key.rank
        here = (PROTOCOL_VERSION, role, *ranks, key.index, key.path, self.world.communicator_id)
        return _HELLO.pack(_MAGIC, *here, secrets.token_bytes(NONCE_BYTES))

    def _read_hello(self, data: bytes, role: int) -> Key:
        """Return this side's key of the connection that a hello names."""
        magic, version, its_role, *connection, communicator_id, _ = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise RejectedError("it does not speak this protocol")
        if version != PROTOCOL_VERSION:
            raise RejectedError(f"it speaks version {version}, this is {PROTOCOL_VERSION}")
        if its_role != role:
            raise RejectedError("it is on the wrong side of the connection")
        source, target, index, path = connection
        if (target, communicator_id) != (self.world.rank, self.world.communicator_id):
            raise RejectedError("it dialled for another rank or communicator")
        return Key(source, index, path)

    def detach(self) -> Connection:
        """Hand the connection and its received descriptors over to the caller."""
        self.closed = True
        if isinstance(self.socket, SSLSocket):
            return TlsStream(self.socket)
        return self.socket.detach()

    def send_some(self, data: bytes) -> int:
        """Send as many bytes as fit; TLS sockets accept no flags."""
        return (
            self.socket.send(data)
            if isinstance(self.socket, SSLSocket)
            else super().send_some(data)
        )

    def when_ready(self, event: int, call: Callable[[], T]) -> Generator[int, None, T]:
        """Repeat a call until it does not block; a plain socket waits for `event`."""
        while True:
            try:
                return call()
            except SSLWantReadError:
                yield EVENT_READ
            except SSLWantWriteError:
                yield EVENT_WRITE
            except BlockingIOError:
                yield event
