"""A non-blocking connection, on which two ranks prove to each other who they are.

All steps are generators that yield the selector event to wait for: one thread runs hundreds.

    step          connector                      acceptor
    hello         fixed size, nonce     ->
                                        <-       fixed size, nonce
    proof         HMAC(both hellos)     ->                          drops a stranger here
                                        <-       HMAC(both hellos)
    acknowledge   one byte              <->      one byte           same node: with segment,
                                                                    doorbell and arena

An acknowledgement says how many of the other rank's messages its sender has (`full_mesh.py`).

The connector proves itself first: a stranger who dials gets a hello that depends on no secret.
Nothing is parsed but the fixed-size hello, and nothing of it reaches C++. No identity follows: the
random id of the communicator stands for one list of members, which every rank found itself in.
"""

import array
import contextlib
import errno
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable, Generator
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Any, TypeVar

from hccl_py.transport.bootstrap.tls import TlsStream
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint
from hccl_py.transport.network.interfaces import Target, address_family, describe_target
from hccl_py.transport.network.sockets import Connection, bind_to_device, peer_process
from hccl_py.transport.threads import is_of_signal_handler

JOINED = 9
"""The progress of a rank that needs no message: all ranks have all their connections."""
CONNECTING = "connecting"
"""The step in which nothing but the kernel of the other side has to answer."""
_MAGIC = b"HCCL-PY\0"
_CONNECTOR, _ACCEPTOR = 1, 2
_HELLO = struct.Struct("!8sHHIIII16s32s")
_PROOF_BYTES = 32
_ACKNOWLEDGE = ord("A")  # plus the progress
# A silent host is noticed within about 45 s, whether data is in flight or not.
_WATCH_OPTIONS = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 6,
    socket.TCP_USER_TIMEOUT: 45_000,
}

T = TypeVar("T")
Steps = Generator[int, None, None]
"""Yields the selector event to wait for."""


class RejectedError(Exception):
    """The other side of a connection is not what it should be; says why, without secrets."""


class ResetError(RejectedError):
    """The connection was reset, by the other side or on the way: another one may succeed."""


class NotListeningError(RejectedError):
    """The peer does not listen yet, or its backlog is full."""


class NotNowError(RejectedError):
    """A member dialled too early, or this rank dials the same connection itself."""


class PendingConnection:
    """A socket on its way through the handshake. Owns socket and received descriptors.

    Attributes:
        socket: the connection; replaced by its TLS wrapper where there is one.
        address: the other end, for messages.
        dialled: this rank dialled it; else it accepted it.
        closed: whether it was closed or handed out.
        step: what is going on, for error messages.
        key: which connection it is, claimed until `authenticated`; None before the hello.
        authenticated: the other side knows the secret.
        descriptors: what the peer passed.
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
        """Take over a socket; `wanted` was dialled, or says which accepted ones may come.

        `progress_with` is this rank's own `progress` with the peer.
        """
        self.world = world
        self.socket = connection
        self.address = address
        self.dialled = isinstance(wanted, Key)
        self.closed = False
        self.step = "hello"
        self.key: Key | None = None
        self.authenticated = False
        self.descriptors: tuple[int, ...] = ()
        self.progress = 0
        self._progress_with = progress_with
        self._steps = self._run(wanted)

    def advance(self) -> int | None:
        """Go on until the socket would block; RejectedError: the other side is wrong.

        Return the selector event to wait for, or None if the handshake is complete.
        """
        try:
            return next(self._steps, None)
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            is_lost = isinstance(error, ConnectionError | TimeoutError)
            kind = ResetError if is_lost or error.errno == errno.ENOTCONN else RejectedError
            raise kind(f"the connection broke: {error.strerror or error}") from error

    def go_on_with(self, steps: Steps) -> None:
        """Have `advance` run these steps, once the handshake is complete or others are given up."""
        self._steps = steps

    def check(self) -> None:
        """Check a complete connection; RejectedError: it was lost, or the peer closed it."""
        try:
            if not socket.socket.recv(self.socket, 1, socket.MSG_PEEK):  # TLS itself cannot peek
                raise RejectedError("it closed the connection")
        except BlockingIOError:
            return
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            raise ResetError(f"the connection broke: {error.strerror}") from error

    def _run(self, wanted: Key | Callable[[Key], bool]) -> Steps:
        if isinstance(wanted, Key):
            self.key, self.step = wanted, CONNECTING
            yield EVENT_WRITE
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                kinds = {errno.ECONNREFUSED: NotListeningError, errno.ECONNRESET: ResetError}
                raise kinds.get(code, RejectedError)(os.strerror(code))
            self.step = "hello"
            yield from self._secure(server_side=False)
            yield from self.connect(wanted)
        else:
            yield from self._secure(server_side=True)
            yield from self.accept(wanted)
        assert self.key is not None
        if isinstance(self.socket, SSLSocket):
            expected = self.world.members[self.key.rank].certificate
            if self.socket.getpeercert(binary_form=True) != expected:
                raise RejectedError("its TLS certificate is not the one of its peer info")
        if self.key.index == CONTROL and self.socket.family != socket.AF_UNIX:
            # The kernel notices a silent host. Not on a lane, which may rightly stand still for
            # minutes with its window closed: the user timeout would take that for a dead peer.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _WATCH_OPTIONS.items():
                self.socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def _secure(self, *, server_side: bool) -> Steps:
        if self.socket.family == socket.AF_UNIX:
            _, user = peer_process(self.socket)
            if user != os.geteuid():
                raise RejectedError(f"it belongs to user {user}, this process to {os.geteuid()}")
            return
        # Before the handshake: Nagle's delay would cost 40 ms per connection there already.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.world.tls is not None:
            self.socket = secured = self.world.tls.wrap(self.socket, server_side=server_side)
            yield from _when_ready(EVENT_READ, secured.do_handshake)

    def connect(self, key: Key) -> Steps:
        """Run the side that dialled."""
        self.key = key
        hello = self._hello(_CONNECTOR, key)
        yield from self.send(hello)
        answer = yield from self.receive(_HELLO.size)
        if self._read_hello(answer, _ACCEPTOR) != key:
            raise RejectedError("it answered for another connection")
        self.step = "proof"
        yield from self.send(self.world.sign(b"connector", hello, answer))
        proof = yield from self.receive(_PROOF_BYTES)
        self._check(proof, self.world.sign(b"acceptor", hello, answer))
        yield from self._conclude()

    def accept(self, is_expected: Callable[[Key], bool]) -> Steps:
        """Run the side that was dialled; `is_expected` says whether a connection may come."""
        hello = yield from self.receive(_HELLO.size)
        key = self._read_hello(hello, _CONNECTOR)
        if not (key.rank < len(self.world.members) and is_expected(key)):
            raise RejectedError("it claims to be a connection that is not expected here")
        self.key = key
        answer = self._hello(_ACCEPTOR, key)
        yield from self.send(answer)
        self.step = "proof"
        proof = yield from self.receive(_PROOF_BYTES)
        self._check(proof, self.world.sign(b"connector", hello, answer))
        yield from self.send(self.world.sign(b"acceptor", hello, answer))
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
        return _HELLO.pack(_MAGIC, *here, secrets.token_bytes(32))

    def _read_hello(self, data: bytes, role: int) -> Key:
        """Return which connection the other side means, as this side names it."""
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

    def _check(self, proof: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(proof, expected):
            raise RejectedError(
                "it does not know this communicator's secret (HCCL_SECRET differs?)"
            )
        self.authenticated = True

    def detach(self) -> Connection:
        """Give the connection to the caller; received descriptors go along."""
        self.closed = True
        if isinstance(self.socket, SSLSocket):
            return TlsStream(self.socket)
        return self.socket.detach()

    def close(self) -> None:
        """Close the connection and what came over it."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(ValueError):  # a fork copied it while the control thread was in it
            self._steps.close()
        self.socket.close()
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> Steps:
        """Send all bytes, and the descriptors with the first of them."""
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        while data:
            if isinstance(self.socket, SSLSocket):
                send = partial(self.socket.send, data)
            else:
                send = partial(self.socket.sendmsg, [data], ancillary, socket.MSG_NOSIGNAL)
            num_sent = yield from _when_ready(EVENT_WRITE, send)
            data, ancillary = data[num_sent:], []

    def receive(self, num_bytes: int, num_descriptors: int = 0) -> Generator[int, None, bytes]:
        """Receive exactly so many bytes: what follows belongs to the engine."""
        received = b""
        while len(received) < num_bytes:
            receive = partial(self._receive_some, num_bytes - len(received), num_descriptors)
            part = yield from _when_ready(EVENT_READ, receive)
            if not part:
                raise RejectedError("it closed the connection")
            received += part
        return received

    def _receive_some(self, num_bytes: int, num_descriptors: int) -> bytes:
        if not num_descriptors:
            return self.socket.recv(num_bytes)
        # Not socket.recv_fds: it drops its flags argument before Python 3.12.
        passed = array.array("i")
        data, ancillary, _, _ = self.socket.recvmsg(
            num_bytes, socket.CMSG_LEN(num_descriptors * passed.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                passed.frombytes(content[: len(content) - len(content) % passed.itemsize])
        self.descriptors += tuple(passed)
        return data


def _when_ready(event: int, call: Callable[[], T]) -> Generator[int, None, T]:
    """Call until the call does not block; `event` is what it waits for on a plain socket."""
    while True:
        try:
            return call()
        except SSLWantReadError:
            yield EVENT_READ
        except SSLWantWriteError:
            yield EVENT_WRITE
        except BlockingIOError:
            yield event


def start_connecting(target: Target, source: Endpoint | None) -> socket.socket:
    """Start to connect a non-blocking socket, which is writable once the attempt has ended.

    It goes from the address of `source`, and through its interface; "" leaves that open.
    """
    family = socket.AF_UNIX if isinstance(target, str) else address_family(target[0])
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    with contextlib.ExitStack() as opened:
        opened.enter_context(dialled)
        if source is not None:
            dialled.bind((source.host, 0))
            bind_to_device(dialled, source.interface)
        code = dialled.connect_ex(target)
        if code in (errno.ECONNREFUSED, errno.EAGAIN):
            raise NotListeningError(os.strerror(code))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        opened.pop_all()
    return dialled


def describe_client(accepted: socket.socket, address: Any) -> str:
    """Render who dialled, for messages."""
    if accepted.family == socket.AF_UNIX:
        return f"unix socket of pid {peer_process(accepted)[0]}"
    return describe_target((address[0], address[1]))
