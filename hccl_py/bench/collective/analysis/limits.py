"""The limits that a result is compared with, measured in the same run by the ranks themselves.

Inside a node nothing moves faster than one thread's memcpy, between nodes nothing faster than plain
TCP sockets, in one direction or in both at once, as the collective's bytes go. The functions here
run in rank processes; `Limits` asks for them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.ranks import Ranks

_COPY_S = 0.01
_LEAST_COPY = 64 * 1024
"""A smaller copy takes as long as the call of it."""
_WIRE_S = 0.2
_WIRE_CHUNK = 1 << 20
_NUM_CONNECTIONS = 2
"""As many as two ranks of hccl use for collectives."""
_BOTH_WAYS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Where every node sends as much as it receives."""
_TIMEOUT_S = 20.0


class Limits:
    """What the machine can do beside what a collective reaches."""

    def __init__(self, ranks: Ranks, options: Options) -> None:
        """Measure the wire between the nodes, if there is one."""
        self._ranks, self._options = ranks, options
        self._wire = self._measure_wire() if options.nnodes > 1 else None

    def copy_gb_per_s(self, size: int) -> float:
        """Measure one thread's memcpy of `size` bytes on rank 0, the others being idle."""
        rates = self._ranks.ask("copy_gb_per_s", size, what="measuring memcpy")
        return float(rates[0])

    def share(self, algbw: float, busbw: float, copy_gb_per_s: float) -> float | None:
        """Return which part of the limit was reached; None: no limit says anything about it.

        Between nodes the bytes count that have to leave or reach a node in any algorithm.
        """
        options = self._options
        if not CASES[options.collective].has_data or options.world_size == 1:
            return None
        crossing = {options.node(a) != options.node(b) for a, b in options.pairs}
        if self._wire is None or crossing == {False}:
            return busbw / copy_gb_per_s
        if options.pairs:
            return algbw * len(options.pairs) / self._wire if crossing == {True} else None
        ranks = options.nproc if options.collective == "all_to_all" else 1
        factor = CASES[options.collective].busbw_factor(options.nnodes)
        return algbw * factor * ranks / self._wire

    @property
    def wire_gb_per_s(self) -> float | None:
        """Plain sockets between the first two nodes, in each direction used; None: one node."""
        return self._wire

    def _measure_wire(self) -> float:
        what, other = "measuring the wire", self._options.nproc
        where = self._ranks.ask("listen", 0, what=what)[0]
        both_ways = self._options.collective in _BOTH_WAYS
        rates = self._ranks.ask("wire_gb_per_s", 0, other, where, both_ways, what=what)
        return float(rates[0])


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
