"""A ZeroMQ socket that listens under CURVE, for the control plane or the store of a unique id.

The sockets are bound here and not by ZeroMQ, before their address is known to others, and a forked
child can close its copies. A client is admitted by its public key (ZAP, answered by `sockets.py`),
and every message comes with the key of its sender.

A stranger is a connection that has sent no message yet. ZeroMQ accepts them without a limit, and
thousands of silent clients would take all descriptors of the process. Its monitor reports each
connection, and a message carries the descriptor of its connection. Where strangers are too many,
the oldest is dropped; where they come faster than that, the kernel drops all requests to connect
until there is room again. Each that was rejected is in the log.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator

import zmq

from hccl_py.transport.control.curve import LINGER_MS, receive_event
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import Rejections, stranger_limit
from hccl_py.transport.network.sockets import OpenSockets

MAX_RECEIVED_PER_TURN = 1024
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
THIS_MACHINE = "this machine"
# ZeroMQ reports no address, and of a connection that it closed at once the kernel has none.
_UNKNOWN = "an unknown address"
_NO_REASON = "it does not speak this protocol, or closed the connection"
_ENDED = "it closed the connection, or sent nothing, before it proved itself"
_BROKE_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_FAILED = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): _ENDED,
    _BROKE_PROTOCOL: "it does not speak this protocol",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it is not a member",
}
OTHER_KEYS = "it is of another job, or HCCL_SECRET differs there"
_MONITORED = int(zmq.EVENT_ACCEPTED) | int(zmq.EVENT_DISCONNECTED) | sum(_FAILED)


class CurveListener:
    """A ROUTER socket and its strangers. The control thread uses it."""

    def __init__(
        self,
        router: "zmq.Socket[bytes]",
        poller: zmq.Poller,
        who: str,
        is_admitted: Callable[[bytes], bool],
    ) -> None:
        """Take over a ROUTER of `curve_socket` that is bound to nothing yet.

        `poller` learns of what to wait for. `who` rejects clients, for the log; `is_admitted` says
        of a public key whether its owner is a member.
        """
        router.curve_server = True
        router.router_mandatory = True
        self.is_admitted = is_admitted
        self._router = router
        self._poller = poller
        self._opened = OpenSockets()
        self._monitor: zmq.Socket[bytes] = router.get_monitor_socket(_MONITORED)
        self._max_strangers = stranger_limit()
        self._strangers: OrderedDict[int, str] = OrderedDict()  # address by descriptor
        self._expected: Collection[str] = ()
        self._num_admitted: Counter[str] = Counter()  # without a message so far; by host
        self._routes: dict[int, bytes] = {}  # of members that sent a message, by descriptor
        self._ended: list[bytes] = []
        self._reason = ""
        self._rejections = Rejections(who)
        self._drops_all = False
        self._ports: list[socket.socket] = []  # copies of the sockets that listen
        # To inspect a connection when no other descriptor is left: a copy takes the number of the
        # first, which then becomes a copy of the second again.
        self._slot = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for one in (router, self._monitor):
            poller.register(one, zmq.POLLIN)

    def drop_silent(self, heartbeat_ms: int, answer_ms: int) -> None:
        """Send heartbeats, and drop clients that do not answer; call it before `listen`."""
        self._router.heartbeat_ivl, self._router.heartbeat_timeout = heartbeat_ms, answer_ms

    def listen(self, bound: socket.socket, num_expected: int = 0) -> None:
        """Serve a bound socket from now on, which is taken over; so many may dial at once."""
        if bound.family == socket.AF_UNIX:
            endpoint = f"ipc://@{bound.getsockname()[1:].decode()}"
        else:
            endpoint = f"tcp://{describe_target(bound.getsockname()[:2])}"
            self._router.ipv6 = bound.family == socket.AF_INET6
        bound.setblocking(False)
        # Not more: ZeroMQ accepts what waits in the backlog even after the kernel drops the rest.
        bound.listen(2 * self._max_strangers + num_expected)
        self._opened.add(bound.fileno())
        self._ports.append(bound.dup())
        self._router.setsockopt(zmq.USE_FD, bound.detach())
        self._router.bind(endpoint)

    def admitted(self, host: str) -> None:
        """Count a client of `host` whose key was accepted; ZeroMQ does not name its descriptor."""
        self._num_admitted[host] += 1

    def receive(self, expected_hosts: Collection[str]) -> list[tuple[bytes, bytes, bytes]]:
        """Take the messages that came, each with key and route of its sender; drop strangers.

        The hosts are those of members that have not connected yet. Such a member is a stranger
        until its first message, and may end before that.
        """
        self._expected = expected_hosts
        with contextlib.suppress(zmq.Again):
            while True:
                self._take_event(*receive_event(self._monitor))
        received: list[tuple[bytes, bytes, bytes]] = []
        with contextlib.suppress(zmq.Again):
            while len(received) < MAX_RECEIVED_PER_TURN:
                route, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                if len(frames) != 1:
                    continue
                descriptor = int(frames[0].get(zmq.SRCFD))
                self._routes[descriptor] = route.bytes
                address = self._strangers.pop(descriptor, None)
                if address is not None:
                    self._was_admitted(address)
                key = str(frames[0].get("User-Id")).encode()
                received.append((key, route.bytes, frames[0].bytes))
        while self._is_full():
            self._cut_oldest()
        if self._drops_all:
            self._drops_all = False
            self._filter(_SO_DETACH_FILTER)
        return received

    def take_ended(self) -> list[bytes]:
        """Return the routes of members whose connections ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def send(self, route: bytes, message: bytes) -> bool:
        """Send a message, or drop it where the client does not read; False if it is not there."""
        try:
            self._router.send_multipart([route, message], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno == errno.EAGAIN
        return True

    def rejected(self) -> str:
        """Return how many clients were rejected and why, for an error; "" if none was."""
        return self._rejections.summary()

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close; what was sent may leave for `linger_ms`."""
        for one in (self._router, self._monitor):
            self._poller.unregister(one)
        self._rejections.log_rest()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._close_own()
        self._router.close(linger_ms)

    def close_copies(self) -> None:
        """In a forked child: close what would keep ports in use, and leave the rest alone."""
        self._opened.close_copies()
        self._close_own()

    def _close_own(self) -> None:
        for port in self._ports:
            port.close()
        os.close(self._slot)
        os.close(self._nothing)

    # Strangers.

    def _is_full(self) -> bool:
        return len(self._strangers) > self._max_strangers + len(self._expected)

    def _was_admitted(self, address: str) -> bool:
        """Say whether a connection from this address was admitted, and count that one no more."""
        # The host of a connection that ended before it was inspected is unknown.
        hosts = [_host(address)] if address else list(self._num_admitted)
        for host in hosts:
            if self._num_admitted[host]:
                self._num_admitted[host] -= 1
                return True
        return False

    def _take_event(self, event: int, value: int) -> None:
        if event in _FAILED:
            self._reason = _FAILED[event]  # the end of that connection follows at once
            if event == _BROKE_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
                self._reason = OTHER_KEYS
        elif event == zmq.EVENT_ACCEPTED:
            self._routes.pop(value, None)  # of a connection before
            with self._inspect(value) as copy:
                self._strangers[value] = _peer_address(copy)
            if not self._drops_all and self._is_full():
                self._drops_all = True
                self._filter(_SO_ATTACH_FILTER)
        else:
            if value in self._routes:
                self._ended.append(self._routes.pop(value))
            address, reason = self._strangers.pop(value, None), self._reason
            self._reason = ""
            if address is None or (reason in ("", _ENDED) and self._was_admitted(address)):
                return  # the messages of a member may still be in the queue, or it had none to send
            if reason == _ENDED and self._expected and _host(address) in ("", *self._expected):
                return  # a member may end while it connects
            self._rejections.note(address or _UNKNOWN, reason or _NO_REASON)

    def _cut_oldest(self) -> None:
        descriptor, address = self._strangers.popitem(last=False)
        self._rejections.note(address or _UNKNOWN, "too many others are waiting")
        # ZeroMQ may have closed it by now, and the number may be another's.
        with self._inspect(descriptor) as copy, contextlib.suppress(OSError):
            if copy is not None and address and _peer_address(copy) == address:
                copy.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _inspect(self, descriptor: int) -> Iterator[socket.socket | None]:
        copy = None
        try:
            os.dup2(descriptor, self._slot, inheritable=False)
            copy = socket.socket(fileno=self._slot)
        except OSError:
            pass  # closed, or meanwhile something else than a socket
        try:
            yield copy
        finally:
            if copy is not None:
                copy.detach()
            os.dup2(self._nothing, self._slot, inheritable=False)

    def _filter(self, option: int) -> None:
        drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF: return 0
        program = struct.pack("@HP", 1, ctypes.addressof(drop_all))
        for port in self._ports:
            with contextlib.suppress(OSError):
                port.setsockopt(socket.SOL_SOCKET, option, program)


def _peer_address(connected: socket.socket | None) -> str:
    if connected is None:
        return ""
    if connected.family == socket.AF_UNIX:
        return THIS_MACHINE
    try:
        return describe_target(connected.getpeername()[:2])
    except OSError:
        return ""


def _host(address: str) -> str:
    return address if address == THIS_MACHINE else address.rpartition(":")[0].strip("[]")
