"""A ZeroMQ socket that listens under CURVE, for the control plane or the store of a unique id.

The sockets are bound here and not by ZeroMQ, before anybody knows their address, and a forked child
can close its copies. A client is admitted by its public key (ZAP, answered by `sockets.py`), and
every message comes with the key of its sender.
"""

import contextlib
import errno
import socket
from collections.abc import Callable, Collection
from typing import NamedTuple

import zmq

from hccl_py.transport.control.strangers import Strangers
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.open_sockets import OpenSockets
from hccl_py.transport.network.rejections import Rejections, stranger_limit

_HANDSHAKE_MS = 10_000
_LINGER_MS = 100
_KEEPALIVE_S = 10
_MAX_RECEIVED_PER_TURN = 1024


class KeyPair(NamedTuple):
    """The public and the secret CURVE key of this end, in Z85."""

    public: bytes
    secret: bytes


class Received(NamedTuple):
    """A message: the public key of its sender, the route for an answer, the content."""

    key: bytes
    route: bytes
    message: bytes


def curve_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, keys: KeyPair, max_message_bytes: int
) -> "zmq.Socket[bytes]":
    """Make a socket that encrypts, and drops connections that announce larger messages."""
    made = context.socket(kind)
    made.curve_publickey, made.curve_secretkey = keys
    made.linger = _LINGER_MS
    made.maxmsgsize = max_message_bytes
    made.handshake_ivl = _HANDSHAKE_MS
    made.tcp_keepalive = 1
    made.tcp_keepalive_idle = made.tcp_keepalive_intvl = _KEEPALIVE_S
    return made


class CurveListener:
    """A ROUTER socket and the watch over its strangers. The control thread uses it."""

    def __init__(
        self,
        router: "zmq.Socket[bytes]",
        poller: zmq.Poller,
        who: str,
        is_admitted: Callable[[bytes], bool],
    ) -> None:
        """Take over a ROUTER that is bound to nothing yet.

        Args:
            router: made by `curve_socket`, with its ZAP domain.
            poller: learns of what to wait for.
            who: rejects clients, for the log.
            is_admitted: says of a public key whether its owner is a member.
        """
        router.curve_server = True
        router.router_mandatory = True
        self.is_admitted = is_admitted
        self._router = router
        self._poller = poller
        self._strangers = Strangers(router, stranger_limit(), Rejections(who))
        self._opened = OpenSockets()
        for one in (router, self._strangers.monitor):
            poller.register(one, zmq.POLLIN)

    def listen(self, bound: socket.socket) -> None:
        """Serve a bound socket from now on; it is taken over."""
        if bound.family == socket.AF_UNIX:
            endpoint = f"ipc://@{bound.getsockname()[1:].decode()}"
        else:
            endpoint = f"tcp://{describe_target(bound.getsockname()[:2])}"
            self._router.ipv6 = bound.family == socket.AF_INET6
        bound.setblocking(False)
        # Not more: ZeroMQ accepts what waits in the backlog even after the kernel drops the rest.
        bound.listen(2 * stranger_limit())
        self._opened.add(bound.fileno())
        self._strangers.add_listener(bound.fileno())
        self._router.setsockopt(zmq.USE_FD, bound.detach())
        self._router.bind(endpoint)

    def admitted(self, host: str) -> None:
        """Count a client of `host` whose key was accepted."""
        self._strangers.admitted(host)

    def receive(self, expected_hosts: Collection[str]) -> list[Received]:
        """Return the messages that came; drop strangers that are too many.

        Args:
            expected_hosts: of members that have not connected yet.
        """
        self._strangers.note_connections(expected_hosts)
        received: list[Received] = []
        with contextlib.suppress(zmq.Again):
            while len(received) < _MAX_RECEIVED_PER_TURN:
                route, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                if len(frames) != 1:
                    continue
                self._strangers.proved(int(frames[0].get(zmq.SRCFD)))
                key = str(frames[0].get("User-Id")).encode()
                received.append(Received(key, route.bytes, frames[0].bytes))
        self._strangers.drop_oldest()
        return received

    def send(self, route: bytes, message: bytes) -> bool:
        """Send a message, or drop it where the client does not read; False if it is not there."""
        try:
            self._router.send_multipart([route, message], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno == errno.EAGAIN
        return True

    def close(self, linger_ms: int = _LINGER_MS) -> None:
        """Close; what was sent may leave for `linger_ms`."""
        for one in (self._router, self._strangers.monitor):
            self._poller.unregister(one)
        self._strangers.close()
        self._router.close(linger_ms)

    def close_copies(self) -> None:
        """In a forked child: close what would keep ports in use, and leave the rest alone."""
        self._opened.close_copies()
        self._strangers.close_copies()
