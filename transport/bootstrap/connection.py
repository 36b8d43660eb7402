"""A non-blocking connection that runs a handshake, and the calls to the operating system."""

import array
import contextlib
import errno
import os
import selectors
import socket
import struct
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Any

from hccl_py.transport.bootstrap.handshake import (
    Handshake,
    Receive,
    Received,
    RejectedError,
    Send,
    Steps,
)
from hccl_py.transport.bootstrap.tls import TlsStream, fingerprint
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.interfaces import Target, address_family, describe_target
from hccl_py.transport.network.listeners import bind_to_device
from hccl_py.transport.network.open_sockets import Connection

_UCRED = struct.Struct("=iII")
# A silent host is noticed within about 45 s, whether data is in flight or not.
_WATCH_OPTIONS = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 6,
    socket.TCP_USER_TIMEOUT: 45_000,
}


class PendingConnection:
    """A connected socket on its way through the handshake. Owns socket and received descriptors.

    Attributes:
        socket: the connection; a TLS one first agrees on keys.
        handshake: the side it runs.
        address: the other end, for messages.
        descriptors: what the peer passed.
        closed: whether it was closed.
    """

    def __init__(
        self, connected: socket.socket, handshake: Handshake, steps: Steps, address: str
    ) -> None:
        """Take over a non-blocking connected socket; `advance` starts the handshake."""
        self.socket = connected
        self.handshake = handshake
        self.address = address
        self.descriptors: tuple[int, ...] = ()
        self.closed = False
        self._steps = steps
        self._request: Send | Receive | None = None
        self._outgoing = b""
        self._passing: tuple[int, ...] = ()
        self._incoming = b""

    def advance(self) -> int | None:
        """Go on until the socket would block.

        Returns:
            The selector event to wait for, or None if the handshake is complete.

        Raises:
            RejectedError: the other side is wrong, or closed the connection.
        """
        try:
            if self._request is None:
                self._secure()
                self._take(next(self._steps))
            while True:
                self._take(self._steps.send(self._serve()))
        except StopIteration:
            self._check_certificate()
            return None
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError) as error:
            waits_to_write = isinstance(error, SSLWantWriteError) or bool(self._outgoing)
            return selectors.EVENT_WRITE if waits_to_write else selectors.EVENT_READ
        except OSError as error:
            raise RejectedError(f"the connection broke: {error.strerror or error}") from error

    def _secure(self) -> None:
        """Run the TLS handshake; a connector knows which certificate it expects."""
        if isinstance(self.socket, SSLSocket):
            self.socket.do_handshake()
            self._check_certificate()

    def _check_certificate(self) -> None:
        """Reject the certificate of another rank. An acceptor learns late which rank it expects."""
        peer = self.handshake.peer
        if isinstance(self.socket, SSLSocket) and peer is not None:
            shown = self.socket.getpeercert(binary_form=True) or b""
            if fingerprint(shown) != fingerprint(peer.certificate):
                raise RejectedError("its TLS certificate is not the one of its rendezvous card")

    def begin(self) -> None:
        """Prepare the socket; reject a process of another user at the end of a Unix socket."""
        if self.socket.family != socket.AF_UNIX:
            # Before the handshake: Nagle's delay would cost 40 ms per connection there already.
            self._set_option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return
        _, user = _peer_process(self.socket)
        if user != os.geteuid():
            raise RejectedError(f"it belongs to user {user}, this process to {os.geteuid()}")

    def watch_peer(self) -> None:
        """Have the kernel notice a silent host; for control connections only.

        A lane may rightly stand still for minutes with its window closed, which the user timeout
        would take for a dead peer.
        """
        if self.socket.family == socket.AF_UNIX:
            return
        self._set_option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _WATCH_OPTIONS.items():
            self._set_option(socket.IPPROTO_TCP, option, value)

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
        self._steps.close()
        self.socket.close()
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _set_option(self, level: int, option: int, value: int) -> None:
        try:
            self.socket.setsockopt(level, option, value)
        except OSError as error:  # reset by the peer meanwhile
            raise RejectedError(f"the connection broke: {error.strerror}") from error

    def _take(self, request: Send | Receive) -> None:
        self._request = request
        self._incoming = b""
        if isinstance(request, Send):
            self._outgoing, self._passing = request.data, request.descriptors

    def _serve(self) -> Received:
        if isinstance(self._request, Receive):
            return self._receive(self._request)
        while self._outgoing:
            if self._passing:
                rights = array.array("i", self._passing)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                num_sent = self.socket.sendmsg([self._outgoing], ancillary, socket.MSG_NOSIGNAL)
                self._passing = ()
            elif isinstance(self.socket, SSLSocket):
                num_sent = self.socket.send(self._outgoing)
            else:
                num_sent = self.socket.send(self._outgoing, socket.MSG_NOSIGNAL)
            self._outgoing = self._outgoing[num_sent:]
        return Received()

    def _receive(self, request: Receive) -> Received:
        """Read exactly what was asked for: what follows belongs to the engine."""
        while len(self._incoming) < request.num_bytes:
            missing = request.num_bytes - len(self._incoming)
            if request.num_descriptors:
                data = self._receive_with_descriptors(missing, request.num_descriptors)
            else:
                data = self.socket.recv(missing)
            if not data:
                raise RejectedError("it closed the connection")
            self._incoming += data
        return Received(self._incoming, self.descriptors)

    def _receive_with_descriptors(self, num_bytes: int, num_descriptors: int) -> bytes:
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


def start_connecting(target: Target, source: Endpoint | None = None) -> socket.socket | None:
    """Open a non-blocking socket and start to connect.

    Args:
        target: what to dial.
        source: whose address to dial from, and through whose interface if it names one.

    Returns:
        The socket, writable once the attempt has ended; None if the peer does not listen yet or
        its backlog is full.
    """
    family = socket.AF_UNIX if isinstance(target, str) else address_family(target[0])
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    if source is not None:
        try:
            dialled.bind((source.host, 0))
        except OSError:
            dialled.close()
            raise
        if source.interface:
            bind_to_device(dialled, source.interface)
    code = dialled.connect_ex(target)
    if code in (0, errno.EINPROGRESS):
        return dialled
    dialled.close()
    if code in (errno.ECONNREFUSED, errno.EAGAIN):
        return None
    raise OSError(code, os.strerror(code))


def describe_client(accepted: socket.socket, address: Any) -> str:
    """Render who dialled, for messages."""
    if accepted.family == socket.AF_UNIX:
        return f"unix socket of pid {_peer_process(accepted)[0]}"
    return describe_target((address[0], address[1]))


def _peer_process(connected: socket.socket) -> tuple[int, int]:
    """Return pid and user id of the other end of a Unix socket, as the kernel knows them."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user, _ = _UCRED.unpack(credentials)
    return int(pid), int(user)
