"""The ZeroMQ sockets of a control plane: one that listens, one for each process that it dialled.

Everything travels under CURVE. Who connects is admitted by the public key alone, which has to be
that of a member's process (ZAP, answered in the same poll loop), and every message comes with the
key of its sender: what it says about itself is not believed.

The listening sockets are made here, not by ZeroMQ: bound early, because cards carry their names,
but listening only when somebody is expected to dial. A forked child can close its copies.
"""

import errno
import secrets
import socket
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import zmq
from zmq.utils import z85

from hccl_py.transport.network.open_sockets import OpenSockets
from hccl_py.transport.network.rejections import Refusals, stranger_limit

from .contact import Contact
from .doorway import THIS_MACHINE, Doorway
from .message import MAX_MESSAGE_BYTES

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_HANDSHAKE_MS = 10_000
_LINGER_MS = 100
_QUEUED_MESSAGES = 64
_KEEPALIVE_S = 10
_MAX_RECEIVED_PER_TURN = 1024
_MAX_FORMER = 4096


class ControlSockets:
    """All sockets of one process. One thread uses them, after they were made by another."""

    def __init__(self, poller: zmq.Poller) -> None:
        """Listen to processes of this machine; admit nobody yet. `poller` waits for messages."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.public_key, self._secret_key = zmq.curve_keypair()
        self.unix_name = f"hccl-{secrets.token_hex(16)}"
        self.opened = OpenSockets()
        self._admitted: set[bytes] = set()
        # A rank may leave while another one, which is slower, still connects to it.
        self._former: OrderedDict[bytes, None] = OrderedDict()
        self._unconnected: dict[bytes, str] = {}  # hosts, by key
        self._routes: dict[bytes, bytes] = {}
        self._dialled: dict[bytes, zmq.Socket[bytes]] = {}
        self.poller = poller
        self._door = self._context.socket(zmq.REP)
        self._door.bind(_ZAP_ENDPOINT)
        self._router = self._socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.zap_domain = b"hccl"
        self._router.router_mandatory = True
        self._doorway = Doorway(self._router, stranger_limit(), Refusals("the coordinator"))
        self.poller.register(self._door, zmq.POLLIN)
        self.poller.register(self._router, zmq.POLLIN)
        self.poller.register(self._doorway.monitor, zmq.POLLIN)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(f"\0{self.unix_name}")
        self._serve(bound, f"ipc://@{self.unix_name}")

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.curve_publickey = self.public_key
        made.curve_secretkey = self._secret_key
        made.linger = _LINGER_MS
        made.maxmsgsize = MAX_MESSAGE_BYTES
        made.set_hwm(_QUEUED_MESSAGES)
        made.handshake_ivl = _HANDSHAKE_MS
        made.tcp_keepalive = 1
        made.tcp_keepalive_idle = made.tcp_keepalive_intvl = _KEEPALIVE_S
        return made

    def listen(self, bound: socket.socket) -> None:
        """Serve a bound TCP socket from now on; it is taken over."""
        host, port = bound.getsockname()[:2]
        self._router.ipv6 = ":" in host
        self._serve(bound, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")

    def _serve(self, bound: socket.socket, endpoint: str) -> None:
        bound.setblocking(False)
        # Not more: what waits there is accepted even after the door was shut.
        bound.listen(2 * stranger_limit())
        self.opened.add(bound.fileno())
        self._doorway.add_listener(bound.fileno())
        self._router.setsockopt(zmq.USE_FD, bound.detach())
        self._router.bind(endpoint)

    # Whom to talk to.

    def admit(self, hosts: Mapping[bytes, str]) -> None:
        """Let processes with these keys in, from these hosts, or from `THIS_MACHINE`."""
        for key, host in hosts.items():
            self._former.pop(key, None)
            if key not in self._admitted and key not in self._routes:
                self._unconnected[key] = host
            self._admitted.add(key)

    def dismiss(self, keys: Iterable[bytes]) -> None:
        """Forget processes that no communicator is shared with any more."""
        for key in keys:
            self._admitted.discard(key)
            self._former[key] = None
            if len(self._former) > _MAX_FORMER:
                forgotten, _ = self._former.popitem(last=False)
                self._unconnected.pop(forgotten, None)
            self._routes.pop(key, None)
            dialled = self._dialled.pop(key, None)
            if dialled is not None:
                self.poller.unregister(dialled)
                dialled.close()

    def send(self, contact: Contact, is_near: bool, message: bytes) -> None:
        """Send to a process, over its connection or a new one.

        What cannot leave is dropped: who waits for an answer asks again.

        Args:
            contact: where it is.
            is_near: whether it runs on this machine.
            message: to be sent.
        """
        route = self._routes.get(contact.key)
        if route is not None:
            try:
                self._router.send_multipart([route, message], zmq.NOBLOCK)
                return
            except zmq.ZMQError as error:
                if error.errno == errno.EAGAIN:
                    return
                del self._routes[contact.key]
        dialled = self._dialled.get(contact.key)
        if dialled is None:
            dialled = self._dialled[contact.key] = self._dial(contact, is_near)
        try:
            dialled.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return

    def _dial(self, contact: Contact, is_near: bool) -> "zmq.Socket[bytes]":
        dialled = self._socket(zmq.DEALER)
        dialled.curve_serverkey = contact.key
        dialled.reconnect_ivl = 50
        dialled.reconnect_ivl_max = 1000
        if is_near:
            dialled.connect(f"ipc://@{contact.unix_name}")
        elif ":" in contact.host:
            dialled.ipv6 = True
            dialled.connect(f"tcp://[{contact.host}]:{contact.port}")
        else:
            dialled.connect(f"tcp://{contact.host}:{contact.port}")
        self.poller.register(dialled, zmq.POLLIN)
        return dialled

    # What comes in.

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return what has come: the key of the sender and its message."""
        self._answer_door()
        self._doorway.expect(self._unconnected.values())
        self._doorway.look()
        received: list[tuple[bytes, bytes]] = []
        while len(received) < _MAX_RECEIVED_PER_TURN:
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            if len(parts) != 2:
                continue
            key = str(parts[1].get("User-Id")).encode()
            self._routes[key] = parts[0].bytes
            self._unconnected.pop(key, None)
            self._doorway.proved(int(parts[1].get(zmq.SRCFD)))
            received.append((key, parts[1].bytes))
        self._doorway.trim()
        for key, dialled in self._dialled.items():
            try:
                while len(received) < 2 * _MAX_RECEIVED_PER_TURN:
                    received.append((key, dialled.recv(zmq.NOBLOCK)))
            except zmq.Again:
                continue
        return received

    def _answer_door(self) -> None:
        """Let connections in, or not, by their keys."""
        while self._door.poll(0):
            version, request, _domain, address, _identity, mechanism, *proofs = (
                self._door.recv_multipart()
            )
            key = z85.encode(proofs[0]) if mechanism == b"CURVE" and proofs else b""
            admitted = key in self._admitted or key in self._former
            if admitted:
                self._doorway.admitted(_host(address))
            status, text = (b"200", b"OK") if admitted else (b"400", b"not a member")
            user = key if admitted else b""
            self._door.send_multipart([version, request, status, text, user, b""])

    def close(self) -> None:
        """Close everything, after a moment for what was sent to leave. Idempotent."""
        for dialled in self._dialled.values():
            dialled.close()
        self._dialled.clear()
        self._doorway.close()
        self._router.close()
        self._door.close()
        self._context.term()

    def close_copies(self) -> None:
        """In a forked child: leave the context to the parent, close the copies of the listeners."""
        self.opened.close_copies()
        self._doorway.close_copies()


def _host(address: bytes) -> str:
    """Return the host that ZAP names: a numeric address, or this machine for a Unix socket."""
    text = address.decode(errors="replace")
    return THIS_MACHINE if text.startswith("localhost:") else text
