"""What other nodes dial while they test the way to this one: a thread for each connection."""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence

from hccl_py.launcher.preflight.node.wire import BULK, BULK_BYTES, Wire, WrongPeerError
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.interfaces import address_family

_HANDSHAKE_S = 10.0
_SESSION_S = 10.0
_MOST_SESSIONS = 128
_CLOSE_S = 2.0
_BACKLOG = 1024
_PAUSE_S = 0.2


class PairServer:
    """Answers nodes that know the secret; a context manager, or `close` it."""

    def __init__(self, secret: bytes) -> None:
        """Listen nowhere yet."""
        self._secret = secret
        self._acceptors: dict[socket.socket, threading.Thread] = {}
        self._sessions: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "PairServer":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def listen(self, host: str, ports: Sequence[int]) -> int:
        """Listen on the first free port of an address, "" being all; OSError: none is free."""
        problem = OSError("no port given")
        for port in ports:
            try:
                listener = _bind(host, port)
            except OSError as error:
                problem = error
                continue
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            self._acceptors[listener] = thread
            thread.start()
            return int(listener.getsockname()[1])
        raise problem

    def close(self) -> None:
        """Close all sockets and wait for the threads. Idempotent."""
        self._closed = True
        _end(self._acceptors)
        with self._lock:
            sessions = dict(self._sessions)
        _end(sessions)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_PAUSE_S)  # out of descriptors, until a connection ends
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                if len(self._sessions) >= _MOST_SESSIONS:
                    connection.close()
                    continue
                self._sessions[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, WrongPeerError):
            wire = Wire(connection, Deadline(_HANDSHAKE_S))
            wire.prove_as_server(self._secret)
            wire.deadline = Deadline(_SESSION_S)
            wire.receive(BULK_BYTES)
            wire.send(BULK)
        with self._lock:
            del self._sessions[connection]


def _end(threads: Mapping[socket.socket, threading.Thread]) -> None:
    """Wake each thread from its wait for a socket, and see it end."""
    for each in threads:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    deadline = Deadline(_CLOSE_S)
    for each, thread in threads.items():
        thread.join(deadline.remaining_s)
        each.close()


def _bind(host: str, port: int) -> socket.socket:
    if not host:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(
            ("", port), family=family, dualstack_ipv6=dual, backlog=_BACKLOG
        )
    return socket.create_server((host, port), family=address_family(host), backlog=_BACKLOG)
