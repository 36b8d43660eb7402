"""Two connected zmq lanes in one process, directly or through a wire-tap."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.providers.interface import Lane, Site
from hccl_py.transport.providers.zmq.provider import ZmqProvider

TIMEOUT_S = 10.0
HEADER = struct.Struct("QQQIHH")


def header(num_bytes: int, number: int = 0) -> bytes:
    """Return a header as the engine makes it."""
    return HEADER.pack(0, number, 0, num_bytes, 0, 0)


def connect_all(
    providers: list[ZmqProvider], cards: list[list[bytes]], timeout_s: float = TIMEOUT_S
) -> list[dict[int, list[Lane]] | Exception]:
    """Let all providers connect, each with its own view of the cards; return what came of it."""
    with ThreadPoolExecutor(len(providers)) as threads:
        futures = [
            threads.submit(provider.connect, view, Deadline(timeout_s))
            for provider, view in zip(providers, cards, strict=True)
        ]
        return [
            future.exception() or future.result()  # type: ignore[misc]
            for future in futures
        ]


@contextlib.contextmanager
def two_providers(address: str = "127.0.0.1") -> Iterator[list[ZmqProvider]]:
    """Make the providers of two ranks, with one lane; not connected yet."""
    with contextlib.ExitStack() as opened:
        providers = []
        for rank in range(2):
            providers.append(ZmqProvider(Site(rank, 2, 1, address)))
            opened.callback(providers[-1].close)
        yield providers


@contextlib.contextmanager
def lane_pair(address: str = "127.0.0.1", tap: WireTap | None = None) -> Iterator[list[Lane]]:
    """Connect two ranks by one lane; rank 0 is dialled, through `tap` if there is one."""
    with two_providers(address) as providers:
        cards = [provider.card() for provider in providers]
        if tap is not None:
            key, host, ports = msgpack.unpackb(cards[0])
            port = tap.listen(host, struct.unpack("!H", ports)[0])
            cards[0] = msgpack.packb([key, host, struct.pack("!H", port)])
        first, second = connect_all(providers, [cards, cards])
        assert isinstance(first, dict), first
        assert isinstance(second, dict), second
        yield [first[1][0], second[0][0]]


class WireTap:
    """Stands between two ends of a TCP connection, and keeps all that goes by."""

    def __init__(self) -> None:
        self.heard = b""
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None

    def listen(self, host: str, port: int) -> int:
        """Forward one connection to that port; return the port to dial instead."""
        listener = socket.create_server((host, 0))
        self._sockets.append(listener)
        self._thread = threading.Thread(target=self._forward, args=(listener, (host, port)))
        self._thread.start()
        return int(listener.getsockname()[1])

    def cut(self) -> None:
        """End the connection."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        assert self._thread is not None
        self._thread.join(TIMEOUT_S)
        for one in self._sockets:
            one.close()

    def _forward(self, listener: socket.socket, target: tuple[str, int]) -> None:
        caller, _ = listener.accept()
        callee = socket.create_connection(target)
        self._sockets += [caller, callee]
        others = {caller: callee, callee: caller}
        with contextlib.suppress(OSError):
            while True:
                for one in select.select(list(others), [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    self.heard += data
                    others[one].sendall(data)
