"""A lane over a PAIR socket of ZeroMQ. `provider.py` makes and connects them.

A socket's descriptor signals only that its state may have changed, and every call on the socket may
clear that signal, for either direction. So each call here ends with a check of the state, and
writes an eventfd if an earlier answer is outdated by it. Socket, monitor and eventfd are in one
epoll set, whose descriptor is the lane's.
"""

import contextlib
import os
import select

import zmq
from zmq.utils.monitor import recv_monitor_message

LINGER_MS = 2000
"""How long close may wait for a peer that does not read."""

_CLOSED = "the connection was closed"
_BEGINNINGS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
_REJECTIONS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the connection ended within the handshake",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "no CURVE handshake of ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not the one in the peer's card",
}
MONITORED = _BEGINNINGS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | sum(_REJECTIONS)


class ZmqLane:
    """One PAIR socket, which it owns; see `interface.Lane` for what it promises.

    Attributes:
        monitor: readable when `standing` or `rejection` may have changed.
        rejection: why the last handshake failed.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(MONITORED)
        self.rejection: str | None = None
        self._connections: set[int] = set()
        self._stood = False
        self._is_full = self._drained = self._is_set = False
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        for descriptor in (socket.fileno(), self.monitor.fileno(), self._event_fd):
            self._epoll.register(descriptor, select.EPOLLIN)

    @property
    def standing(self) -> bool:
        """Whether a peer has proved its key and is connected."""
        while _state(self.monitor) & zmq.POLLIN:
            message = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            event, descriptor = message["event"], message["value"]
            if event & _BEGINNINGS:
                self._connections.add(descriptor)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._stood = True
            elif event == zmq.EVENT_DISCONNECTED:
                self._connections.discard(descriptor)
            else:
                self.rejection = _REJECTIONS[event]
        # A bound socket has strangers too; the peer has ended when no connection is left.
        return self._stood and bool(self._connections)

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        """Take a message, or none of it; ConnectionError: the connection ended for good."""
        self._clear_event()
        if not self.standing:
            raise ConnectionError(_CLOSED)
        try:
            self._socket.send(b"".join((header, payload)), zmq.NOBLOCK)
            self._is_full = False
        except zmq.Again:
            self._is_full = True
        self._set_if_outdated()
        return not self._is_full

    def receive(self) -> zmq.Frame | None:
        """Return the next message or None; ConnectionError: all were received before the end."""
        self._clear_event()
        standing = self.standing  # first: what came before the end is received before it
        frame = None
        with contextlib.suppress(zmq.Again):
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        self._drained = frame is None
        if frame is None and not standing:
            raise ConnectionError(_CLOSED)
        self._set_if_outdated()
        return frame

    def fd(self) -> int:
        """Return the descriptor that signals a change."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the socket; what was sent still leaves, for `LINGER_MS` at most."""
        if self._socket.closed:
            return
        linger_ms = LINGER_MS if self.standing else 0
        self._epoll.close()
        os.close(self._event_fd)
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)

    def _set_if_outdated(self) -> None:
        if not (self._is_full or self._drained):
            return
        state = _state(self._socket)
        writable, readable = state & zmq.POLLOUT, state & zmq.POLLIN
        if (self._is_full and writable) or (self._drained and readable):
            os.eventfd_write(self._event_fd, 1)
            self._is_set = True

    def _clear_event(self) -> None:
        if self._is_set:
            os.eventfd_read(self._event_fd)
            self._is_set = False


def _state(socket: "zmq.Socket[bytes]") -> int:
    state = socket.get(zmq.EVENTS)
    assert isinstance(state, int)
    return state
