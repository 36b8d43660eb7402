"""The ZeroMQ sockets of this process: one that listens, and one for each process that it dialled.

Everything travels under CURVE. A process is admitted by its public key alone, which the rendezvous
peer info of one of its ranks carried. Nothing that a message says about its sender is believed.
"""

import contextlib
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import zmq
from zmq.utils import z85

from hccl_py.transport.control.curve import KeyPair, curve_socket
from hccl_py.transport.control.listener import (
    MAX_RECEIVED_PER_TURN,
    THIS_MACHINE,
    CurveListener,
)
from hccl_py.transport.control.message import MAX_MESSAGE_BYTES, ControlAddress
from hccl_py.transport.network.interfaces import describe_target

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"hccl"
_MAX_FORMER = 4096


class ControlSockets:
    """All sockets of one process. The control thread uses them, after another one made them.

    Attributes:
        public_key: what this process proves to others.
        unix_name: where processes of this machine connect.
        listener: serves them; and those of other machines, once it listens at a TCP socket.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        """Listen to processes of this machine; admit nobody yet. `poller` waits for messages."""
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = KeyPair(*zmq.curve_keypair())
        self.public_key = self._keys.public
        self.unix_name = f"hccl-{secrets.token_hex(16)}"
        # The rest by the key of a process.
        self._members: dict[bytes, ControlAddress] = {}
        self._num_ranks: Counter[bytes] = Counter()  # of all communicators
        # A rank may leave while another one, which is slower, still connects to it.
        self._former: OrderedDict[bytes, None] = OrderedDict()
        self._unconnected: dict[bytes, str] = {}  # hosts
        self._routes: dict[bytes, bytes] = {}
        self._dialled: dict[bytes, zmq.Socket[bytes]] = {}
        self.poller = poller
        self._zap = self.context.socket(zmq.REP)
        self._zap.bind(_ZAP_ENDPOINT)
        self.poller.register(self._zap, zmq.POLLIN)
        self._listeners: dict[bytes, CurveListener] = {}
        self.listener = self.open_listener(
            _DOMAIN, self._keys, "the coordinator", self._is_member, MAX_MESSAGE_BYTES
        )
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(f"\0{self.unix_name}")
        self.listener.listen(bound)

    def open_listener(
        self,
        domain: bytes,
        keys: KeyPair,
        who: str,
        is_admitted: Callable[[bytes], bool],
        max_message_bytes: int,
    ) -> CurveListener:
        """Open another listening socket; its ZAP domain identifies it."""
        router = curve_socket(self.context, zmq.ROUTER, keys, max_message_bytes)
        router.zap_domain = domain
        listener = self._listeners[domain] = CurveListener(router, self.poller, who, is_admitted)
        return listener

    def close_listener(self, domain: bytes, linger_ms: int) -> None:
        """Close a listening socket; what was sent may leave for `linger_ms`."""
        self._listeners.pop(domain).close(linger_ms)

    def admit(self, address: ControlAddress) -> None:
        """Admit the process of one more rank."""
        key = address.key
        self._former.pop(key, None)
        if key not in self._members and key not in self._routes:
            self._unconnected[key] = THIS_MACHINE if address.unix_name else address.host
        self._members[key] = address
        self._num_ranks[key] += 1

    def dismiss(self, keys: Iterable[bytes]) -> None:
        """Dismiss the process of each rank; the connections close with its last rank."""
        for key in keys:
            self._num_ranks[key] -= 1
            if self._num_ranks[key]:
                continue
            del self._num_ranks[key], self._members[key]
            self._former[key] = None
            if len(self._former) > _MAX_FORMER:
                forgotten, _ = self._former.popitem(last=False)
                self._unconnected.pop(forgotten, None)
            self._routes.pop(key, None)
            dialled = self._dialled.pop(key, None)
            if dialled is not None:
                self.poller.unregister(dialled)
                dialled.close()

    def _is_member(self, key: bytes) -> bool:
        return key in self._members or key in self._former

    def send(self, key: bytes, message: bytes) -> None:
        """Send to a process, over its connection or a new one; nothing goes to one that left.

        A message that cannot leave is dropped: a rank that waits for an answer asks again.
        """
        if key not in self._members:
            return
        route = self._routes.get(key)
        if route is not None:
            if self.listener.send(route, message):
                return
            del self._routes[key]
        if key not in self._dialled:
            self._dialled[key] = self._dial(self._members[key])
        with contextlib.suppress(zmq.Again):
            self._dialled[key].send(message, zmq.NOBLOCK)

    def _dial(self, address: ControlAddress) -> "zmq.Socket[bytes]":
        dialled = curve_socket(self.context, zmq.DEALER, self._keys, MAX_MESSAGE_BYTES)
        dialled.curve_serverkey = address.key
        dialled.reconnect_ivl = 50
        dialled.reconnect_ivl_max = 1000
        if address.unix_name:
            dialled.connect(f"ipc://@{address.unix_name}")
        else:
            dialled.ipv6 = ":" in address.host
            dialled.connect(f"tcp://{describe_target((address.host, address.port))}")
        self.poller.register(dialled, zmq.POLLIN)
        return dialled

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return what has come: the key of the sender and its message."""
        self.answer_zap()
        received: list[tuple[bytes, bytes]] = []
        for key, route, message in self.listener.receive(self._unconnected.values()):
            self._routes[key] = route
            self._unconnected.pop(key, None)
            received.append((key, message))
        for key, dialled in self._dialled.items():
            with contextlib.suppress(zmq.Again):
                while len(received) < MAX_RECEIVED_PER_TURN:
                    received.append((key, dialled.recv(zmq.NOBLOCK)))
        return received

    def answer_zap(self) -> None:
        """Admit clients by their public keys."""
        while self._zap.poll(0):
            version, request, domain, client, _, mechanism, *proofs = self._zap.recv_multipart()
            key = z85.encode(proofs[0]) if mechanism == b"CURVE" and proofs else b""
            listener = self._listeners.get(domain)
            admitted = listener is not None and listener.is_admitted(key)
            if listener is not None and admitted:
                # A numeric address, or "localhost:" and more for a Unix socket.
                host = client.decode(errors="replace")
                listener.admitted(THIS_MACHINE if host.startswith("localhost:") else host)
            status, text = (b"200", b"OK") if admitted else (b"400", b"not a member")
            self._zap.send_multipart(
                [version, request, status, text, key if admitted else b"", b""]
            )

    def close(self) -> None:
        """Close everything, after a moment for what was sent to leave. Idempotent."""
        for socket_ in (*self._dialled.values(), self._zap):
            socket_.close()
        self._dialled.clear()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self.context.term()

    def close_copies(self) -> None:
        """In a forked child: leave the context to the parent, close the copies of the listeners."""
        for listener in self._listeners.values():
            listener.close_copies()
