"""The server that other nodes dial to test the network to this one."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from hccl_py.launcher.preflight.node.probe import BULK, BULK_BYTES, PURPOSE
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.interfaces import address_family
from hccl_py.transport.wire.handshake import RejectedError, SecretHandshake

_HANDSHAKE_S = _BULK_S = 10.0
_MOST_CONNECTIONS = 128
_POLL_S = 0.05


class PairServer:
    """Answers nodes that know the secret; a context manager, or `close` it."""

    def __init__(self, secret: bytes) -> None:
        """Create it without listening."""
        self._secret = secret
        self._listeners: list[_Listener] = []

    def __enter__(self) -> "PairServer":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def listen(self, host: str, ports: Sequence[int]) -> int:
        """Listen on the first free port of an address, "": all; OSError: none is free."""
        problem = OSError("no port given")
        for port in ports:
            try:
                listener = _Listener(self._secret, host, port)
            except OSError as error:
                problem = error
                continue
            self._listeners.append(listener)
            threading.Thread(target=listener.serve_forever, args=[_POLL_S], daemon=True).start()
            return int(listener.server_address[1])
        raise problem

    def close(self) -> None:
        """Close all sockets and wait for the threads. Idempotent."""
        while self._listeners:
            listener = self._listeners.pop()
            listener.shutdown()
            listener.end_connections()
            listener.server_close()


class _Listener(ThreadingTCPServer):
    """Listens on one port; a thread for each connection."""

    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, secret: bytes, host: str, port: int) -> None:
        self.secret = secret
        self._connections: set[socket.socket] = set()
        is_dual = not host and socket.has_dualstack_ipv6()
        self.address_family = address_family(host or ("::" if is_dual else "0.0.0.0"))
        super().__init__((host, port), _Connection, bind_and_activate=False)
        try:
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
            self.server_bind()
            self.server_activate()
        except OSError:
            self.server_close()
            raise

    def verify_request(self, *_: Any) -> bool:
        return len(self._connections) < _MOST_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        for each in tuple(self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Connection(BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        with contextlib.suppress(OSError, RejectedError):
            shaken = SecretHandshake(self.request, "", PURPOSE, self.server.secret, False)
            shaken.prove(Deadline(_HANDSHAKE_S))
            deadline = Deadline(_BULK_S)
            shaken.finish(shaken.receive(BULK_BYTES), deadline)
            shaken.finish(shaken.send(BULK), deadline)
