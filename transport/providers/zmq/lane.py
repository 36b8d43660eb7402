"""A lane over a DEALER socket of ZeroMQ. `provider.py` makes and connects them.

ZeroMQ reconnects by itself, but silently loses messages in flight over the old connection. So each
message has a number and is kept until the peer acknowledges it. When a connection ends or begins,
all unacknowledged messages are sent again; the receiver drops duplicates and gaps.
The socket is not a PAIR, which keeps a new connection open but unused if that connection arrives
before the end of the last one was noticed.

A socket's descriptor signals only that its state may have changed, and every call on the socket may
clear that signal, for either direction. So each call here moves both directions, then checks the
state, and writes an eventfd if an earlier answer is outdated. Sockets, monitor and eventfd are in
one epoll set, whose descriptor is the lane's.
"""

import contextlib
import os
import select
import struct
import time
from collections import deque

import zmq
from zmq.utils.monitor import recv_monitor_message

LINGER_MS = 2000
"""Longest wait of close for a peer that does not read."""
QUEUED_MESSAGES = 8
"""Queue length of a lane on either side, in messages of at most 128 KiB."""

_MAX_UNACKNOWLEDGED = 2 * QUEUED_MESSAGES
_MESSAGES_PER_ACK = QUEUED_MESSAGES // 2
_NUMBER = struct.Struct("=Q")
_ACK = struct.Struct("=QQ")
"""The number 0, and how many messages the peer's direction has delivered."""
_CLOSED = "the connection was closed"
BROKEN = "the connection ended within the handshake"
_BEGINNINGS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
_REJECTIONS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: BROKEN,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "no CURVE handshake of ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not the one in the peer's address",
}
MONITORED = _BEGINNINGS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | sum(_REJECTIONS)


class ZmqLane:
    """One DEALER socket, which it owns; see `interface.Lane` for the contract.

    Attributes:
        monitor: readable when `standing` or `rejection` may have changed.
        rejection: why the last handshake failed; after `BROKEN` ZeroMQ dials again.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """Take over a socket."""
        self._socket = socket
        self._epoll = select.epoll()  # before the monitor: where no descriptor is left this fails
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(MONITORED)
        self.rejection: str | None = None
        self._connections: set[int] = set()
        self._stood = False
        self._peer_has_ended = False
        self._broke_s: float | None = None  # since when no message was delivered,
        self._num_breaks = 0  # and how many connections ended since
        # Sent, and not acknowledged. The first `_num_left` went out over this connection.
        self._kept: deque[bytes] = deque()
        self._num_left = self._num_acknowledged = 0
        # Received in order, not yet taken; and how many deliveries the peer knows of.
        self._inbox: deque[zmq.Frame] = deque()
        self._num_received = self._num_told = 0
        self._is_full = self._drained = self._is_set = False
        for descriptor in (socket.fileno(), self.monitor.fileno(), self._event_fd):
            self._epoll.register(descriptor, select.EPOLLIN)

    @property
    def standing(self) -> bool:
        """Whether a peer has proved its key and is connected."""
        self._take_events()
        # A bound socket has unauthenticated connections too; the peer is gone when none is left.
        return self._stood and bool(self._connections)

    def _take_events(self) -> None:
        while state(self.monitor) & zmq.POLLIN:
            message = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            event, descriptor = message["event"], message["value"]
            if event & _BEGINNINGS:
                self._connections.add(descriptor)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._stood = True
                self._num_left = self._num_told = 0
            elif event == zmq.EVENT_DISCONNECTED:
                self._connections.discard(descriptor)
                self._num_left = 0
                if not self._connections:  # else it may have been unauthenticated
                    self._broke_s = self._broke_s or time.monotonic()
                    self._num_breaks += 1
            else:
                self.rejection = _REJECTIONS[event]

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        """Queue a whole message, or nothing; ConnectionError: the peer has ended."""
        self._move()
        if self._has_ended():
            raise ConnectionError(_CLOSED)
        taken = self._has_room() and self._send_new(header, payload)
        self._is_full = not taken
        self._set_if_outdated()
        return taken

    def receive(self) -> memoryview | None:
        """Return the next message or None; ConnectionError: all were received before the end."""
        has_ended = self._has_ended()  # first: earlier messages are received before the end
        self._move()
        self._drained = not self._inbox
        if self._drained and has_ended:
            raise ConnectionError(_CLOSED)
        frame = None if self._drained else self._inbox.popleft()
        if self._num_taken - self._num_told >= _MESSAGES_PER_ACK:
            self._acknowledge()
        self._set_if_outdated()
        return None if frame is None else frame.buffer[_NUMBER.size :]

    def tend(self) -> None:
        """Make progress outside calls, and send acknowledgements that no message carried."""
        self._move()
        if self._num_taken > self._num_told:
            self._acknowledge()
        self._set_if_outdated()

    def peer_has_ended(self) -> None:
        """Raise once the peer is disconnected and none of its messages is left."""
        self._peer_has_ended = True
        os.eventfd_write(self._event_fd, 1)
        self._is_set = True

    def owes(self) -> bool:
        """Return whether a live peer has not acknowledged all: its connection may still break."""
        self.tend()
        return bool(self._kept) and not self._peer_has_ended

    def trouble(self) -> tuple[float, str] | None:
        """Return the seconds since a message was delivered, and why; None: all is well."""
        if self._broke_s is None:
            return None
        why = f": {self.rejection}" if self.rejection else ""
        return time.monotonic() - self._broke_s, (
            f"the network broke {self._num_breaks} connections without delivering a message{why}; "
            "does it lose or change what they carry?"
        )

    def fd(self) -> int:
        """Return the descriptor that signals a change."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the socket; sent messages may leave for `LINGER_MS`."""
        if self._socket.closed:
            return
        linger_ms = LINGER_MS if self.standing else 0
        self._epoll.close()
        os.close(self._event_fd)
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)

    @property
    def _num_taken(self) -> int:
        return self._num_received - len(self._inbox)

    def _has_ended(self) -> bool:
        return self._peer_has_ended and not self.standing

    def _move(self) -> None:
        """Receive and send as much as possible."""
        if self._is_set:
            os.eventfd_read(self._event_fd)
            self._is_set = False
        self._take_events()
        with contextlib.suppress(zmq.Again):
            while True:
                self._take(self._socket.recv(zmq.NOBLOCK, copy=False))
        self._send_kept()

    def _take(self, frame: zmq.Frame) -> None:
        if len(frame) < _NUMBER.size:
            return
        (number,) = _NUMBER.unpack_from(frame.buffer)
        if number == 0 and len(frame) == _ACK.size:
            self._drop(_ACK.unpack(frame.buffer)[1] - self._num_acknowledged)
        elif number == self._num_received + 1:
            self._num_received += 1
            self._inbox.append(frame)
            self._broke_s, self._num_breaks = None, 0

    def _drop(self, num_acknowledged: int) -> None:
        for _ in range(min(num_acknowledged, len(self._kept))):
            self._kept.popleft()
            self._num_acknowledged += 1
            self._num_left = max(0, self._num_left - 1)
            self._broke_s, self._num_breaks = None, 0

    def _has_room(self) -> bool:
        num_kept = len(self._kept)
        return self._num_left == num_kept < _MAX_UNACKNOWLEDGED

    def _send_new(self, header: bytes, payload: memoryview) -> bool:
        number = self._num_acknowledged + len(self._kept) + 1
        message = b"".join((_NUMBER.pack(number), header, payload))
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._kept.append(message)
        self._num_left += 1
        return True

    def _send_kept(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._num_left < len(self._kept):
                self._socket.send(self._kept[self._num_left], zmq.NOBLOCK)
                self._num_left += 1

    def _acknowledge(self) -> None:
        with contextlib.suppress(zmq.Again):  # retried later, at the latest in `tend`
            self._socket.send(_ACK.pack(0, self._num_taken), zmq.NOBLOCK)
            self._num_told = self._num_taken

    def _set_if_outdated(self) -> None:
        events = state(self._socket)
        waits = self._num_left < len(self._kept) or (self._is_full and self._has_room())
        has_come = events & zmq.POLLIN or (self._drained and self._inbox)
        if has_come or (waits and events & zmq.POLLOUT):
            os.eventfd_write(self._event_fd, 1)
            self._is_set = True


def state(socket: "zmq.Socket[bytes]") -> int:
    """Return what a socket is ready for."""
    events = socket.get(zmq.EVENTS)
    assert isinstance(events, int)
    return events
