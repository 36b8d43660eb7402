"""What a rank process measures of its machine: one thread's memcpy, and plain sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np

_COPY_S = 0.01
_LEAST_COPY = 64 * 1024
"""A smaller copy takes as long as the call of it."""
_WIRE_S = 0.2
_WIRE_CHUNK = 1 << 20
_NUM_CONNECTIONS = 2
"""As many as two ranks of hccl use for collectives."""
_TIMEOUT_S = 20.0


def _rate(receive: Callable[[], int]) -> float:
    """Call what returns a number of bytes for a while; GB/s, without the slow first fifth."""
    began = since = now = time.perf_counter()
    num_bytes = 0
    while now - began < _WIRE_S:
        num_bytes += receive()
        now = time.perf_counter()
        if since - began < _WIRE_S / 5:
            since, num_bytes = now, 0
    return num_bytes / (now - since) / 1e9


@dataclass
class Wire:
    """The listening end of plain socket pairs, in a rank process."""

    listener: socket.socket

    @classmethod
    def listen(cls, address: str) -> Wire:
        """Listen on any port."""
        return cls(socket.create_server((address, 0)))

    @property
    def address(self) -> tuple[str, int]:
        """Where the other end connects."""
        host, port = self.listener.getsockname()[:2]
        return host, port

    def receive(self) -> float:
        """Receive for a while; return the rate in GB/s."""
        self.listener.settimeout(_TIMEOUT_S)
        buffer = bytearray(_WIRE_CHUNK)
        with self.listener, self.listener.accept()[0] as peer:
            peer.settimeout(_TIMEOUT_S)
            return _rate(lambda: peer.recv_into(buffer))

    def exchange(self) -> float:
        """Receive for a while, and send as much as goes; return the rate received, in GB/s."""
        self.listener.settimeout(_TIMEOUT_S)
        with ExitStack() as opened:
            opened.enter_context(self.listener)
            peers = [
                opened.enter_context(self.listener.accept()[0]) for _ in range(_NUM_CONNECTIONS)
            ]
            buffers = _Buffers.of(peers)
            return _rate(lambda: buffers.exchange(peers))


@dataclass(frozen=True)
class _Buffers:
    """What an end sends, and where it receives, on non-blocking connections."""

    outgoing: bytes
    incoming: bytearray

    @classmethod
    def of(cls, peers: Sequence[socket.socket]) -> _Buffers:
        for peer in peers:
            peer.setblocking(False)
        return cls(bytes(_WIRE_CHUNK), bytearray(_WIRE_CHUNK))

    def exchange(self, peers: Sequence[socket.socket]) -> int:
        """Move what goes now; return the bytes received."""
        num_bytes = 0
        for peer in peers:
            with suppress(BlockingIOError):
                peer.send(self.outgoing)
            with suppress(BlockingIOError):
                num_bytes += peer.recv_into(self.incoming)
        return num_bytes


def exchange_until_closed(address: tuple[str, int]) -> None:
    """Be the other end of `Wire.exchange`."""
    with ExitStack() as opened:
        peers = [
            opened.enter_context(socket.create_connection(address, _TIMEOUT_S))
            for _ in range(_NUM_CONNECTIONS)
        ]
        buffers = _Buffers.of(peers)
        with suppress(OSError):
            while True:
                buffers.exchange(peers)


def send_until_closed(address: tuple[str, int]) -> None:
    """Send as fast as the kernel takes it, until the other end has enough."""
    with socket.create_connection(address, _TIMEOUT_S) as peer:
        try:
            while True:
                peer.sendall(bytes(_WIRE_CHUNK))
        except OSError:
            return


def copy_gb_per_s(size: int) -> float:
    """Copy `size` bytes for about ten milliseconds; return the median rate in GB/s."""
    source = np.ones(max(size, _LEAST_COPY), np.uint8)
    target = np.ones_like(source)
    rates: list[float] = []
    end = time.perf_counter() + _COPY_S
    while len(rates) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        np.copyto(target, source)
        rates.append(source.size / (time.perf_counter() - began) / 1e9)
    return float(np.median(rates))
