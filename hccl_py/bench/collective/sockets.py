"""Bytes over plain TCP connections: what the network carries without a library.

Two ends have two connections, as two ranks of hccl have for collectives.
"""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

NUM_CONNECTIONS = 2
TIMEOUT_S = 20.0
"""The longest wait for the other end to connect, and for the next byte to move."""

_OUTGOING, _INCOMING = memoryview(bytes(1 << 20)), memoryview(bytearray(1 << 20))


def accept(listener: socket.socket) -> list[socket.socket]:
    """Take the connections of one other end."""
    listener.settimeout(TIMEOUT_S)
    return [_prepared(listener.accept()[0]) for _ in range(NUM_CONNECTIONS)]


def connect(address: tuple[str, int]) -> list[socket.socket]:
    """Connect with the end that accepts."""
    connections = (socket.create_connection(address, TIMEOUT_S) for _ in range(NUM_CONNECTIONS))
    return list(map(_prepared, connections))


def _prepared(peer: socket.socket) -> socket.socket:
    peer.setblocking(False)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def exchange(peers: Sequence[socket.socket], to_send: int, to_receive: int) -> None:
    """Send and receive so many bytes, an equal part of them over each connection.

    The connections are non-blocking: each in turn moves as much as it can at once.

    Raises:
        OSError: one failed, the other end closed it too early, or nothing moved for 20 s.
    """
    n = len(peers)
    left = [
        [total * (at + 1) // n - total * at // n for at in range(n)]
        for total in (to_send, to_receive)
    ]
    moved_s = time.monotonic()
    while (before := list(map(sum, left))) != [0, 0]:
        for at, peer in enumerate(peers):
            with suppress(BlockingIOError):
                if left[0][at]:
                    left[0][at] -= peer.send(_OUTGOING[: left[0][at]])
            with suppress(BlockingIOError):
                if left[1][at]:
                    received = peer.recv_into(_INCOMING[: left[1][at]])
                    if not received:
                        raise ConnectionError("the other host's rank closed its connection")
                    left[1][at] -= received
        if before != list(map(sum, left)):
            moved_s = time.monotonic()
        elif time.monotonic() > moved_s + TIMEOUT_S:
            raise TimeoutError(f"{before} bytes were still to be sent and to come")
        else:
            os.sched_yield()  # the other end may share this core
