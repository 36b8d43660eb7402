"""Strangers at a listening ZeroMQ socket: few at a time, and each in the log.

A stranger is a connection that has sent no message yet. ZeroMQ accepts them without a limit, and
thousands of silent clients would take all descriptors of the process. Its monitor reports each
connection, and a message carries the descriptor of its connection. Where strangers are too many,
the oldest is dropped; where they come faster than that, the kernel drops all requests to connect
until there is room again.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import Rejections

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
THIS_MACHINE = "this machine"
# ZeroMQ reports no address, and of a connection that it closed at once the kernel has none.
_UNKNOWN = "an unknown address"
_NO_REASON = "it does not speak this protocol, or closed the connection"
_ENDED = "it closed the connection, or sent nothing, before it proved itself"
_FAILED = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): _ENDED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it does not speak this protocol",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it is not a member",
}
_MONITORED = int(zmq.EVENT_ACCEPTED) | int(zmq.EVENT_DISCONNECTED) | sum(_FAILED)


class Strangers:
    """The strangers of one socket that listens. The socket's thread uses it."""

    def __init__(self, listening: "zmq.Socket[bytes]", limit: int, rejections: Rejections) -> None:
        """Watch a socket that does not listen yet.

        Args:
            listening: whose monitor this takes.
            limit: of strangers.
            rejections: logs those that were rejected.
        """
        self.monitor: zmq.Socket[bytes] = listening.get_monitor_socket(_MONITORED)
        self._listening = listening
        self._limit = limit
        self._expected: Collection[str] = ()
        self._rejections = rejections
        self._ports: list[socket.socket] = []
        # To inspect a connection when no other descriptor is left: a copy takes the number of the
        # first, which then becomes a copy of the second again.
        self._slot = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._strangers: OrderedDict[int, str] = OrderedDict()
        self._num_members: Counter[str] = Counter()  # admitted, without a message so far; by host
        self._reason = ""
        self._drops_all = False

    def add_listener(self, descriptor: int) -> None:
        """Note which descriptor listens; it stays the socket's."""
        self._ports.append(socket.socket(fileno=os.dup(descriptor)))

    def admitted(self, host: str) -> None:
        """Count a member of `host` whose key was accepted; ZeroMQ does not name its descriptor."""
        self._num_members[host] += 1

    def proved(self, descriptor: int) -> None:
        """Note that a message came over a connection."""
        address = self._strangers.pop(descriptor, None)
        if address is not None:
            self._was_member(address)

    def _was_member(self, address: str) -> bool:
        """Say whether a connection from this address was admitted, and count that one no more."""
        # The host of a connection that ended before it was inspected is unknown.
        hosts = [_host(address)] if address else list(self._num_members)
        for host in hosts:
            if self._num_members[host]:
                self._num_members[host] -= 1
                return True
        return False

    def note_connections(self, expected_hosts: Collection[str]) -> None:
        """Note connections that came and ended; then call `proved` for messages, and `drop_oldest`.

        Args:
            expected_hosts: of members that have not connected yet. Such a member is a stranger
                until its first message, and may end before that.
        """
        self._expected = expected_hosts
        with contextlib.suppress(zmq.Again):
            while True:
                self._take(recv_monitor_message(self.monitor, zmq.NOBLOCK))

    def drop_oldest(self) -> None:
        """Drop the oldest strangers, if they are too many."""
        while self._is_full():
            self._cut_oldest()
        if self._drops_all:
            self._drops_all = False
            self._filter(_SO_DETACH_FILTER)

    def _is_full(self) -> bool:
        return len(self._strangers) > self._limit + len(self._expected)

    def close(self) -> None:
        """Watch no more."""
        self._rejections.log_rest()
        self._listening.disable_monitor()
        self.monitor.close(0)
        self.close_copies()

    def close_copies(self) -> None:
        """Close the descriptors that are not ZeroMQ's own; in a forked child nothing else."""
        for port in self._ports:
            port.close()
        os.close(self._slot)
        os.close(self._nothing)

    def _take(self, message: Mapping[str, Any]) -> None:
        event, value = int(message["event"]), int(message["value"])
        if event in _FAILED:
            self._reason = _FAILED[event]  # the end of that connection follows at once
        elif event == zmq.EVENT_ACCEPTED:
            with self._inspect(value) as copy:
                self._strangers[value] = _peer_address(copy)
            if not self._drops_all and self._is_full():
                self._drops_all = True
                self._filter(_SO_ATTACH_FILTER)
        else:
            address, reason = self._strangers.pop(value, None), self._reason
            self._reason = ""
            if address is None or (reason in ("", _ENDED) and self._was_member(address)):
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
        """Hold a copy of a connection, which stays open; None if it is closed already."""
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
        """Have the kernel drop, or no longer drop, all packets to the listening sockets."""
        drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF: return 0
        program = struct.pack("@HP", 1, ctypes.addressof(drop_all))
        for port in self._ports:
            with contextlib.suppress(OSError):
                port.setsockopt(socket.SOL_SOCKET, option, program)


def _peer_address(connected: socket.socket | None) -> str:
    """Return the address of the other end; "" if the connection is closed already."""
    if connected is None:
        return ""
    if connected.family == socket.AF_UNIX:
        return THIS_MACHINE
    try:
        return describe_target(connected.getpeername()[:2])
    except OSError:
        return ""


def _host(address: str) -> str:
    """Return the host of an address as ZeroMQ writes it: no port, no brackets."""
    return address if address == THIS_MACHINE else address.rpartition(":")[0].strip("[]")
