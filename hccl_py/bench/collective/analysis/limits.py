"""The limits that a result is compared with, which the ranks measure in the same run.

Inside a node the limit is one thread's memcpy. Between nodes it is plain TCP connections, in one
direction or in both at once, as the collective sends.
"""

import os
import socket
import time

import numpy as np

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.rank import Rank
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.bench.collective.sockets import accept, connect, exchange
from hccl_py.quantities import busbw_factor

_BOTH_WAYS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Collectives in which every node sends as much as it receives."""

_COPY_S = 0.01
_LEAST_COPY = 64 * 1024
"""The time of a smaller copy is mostly that of the call."""

_WIRE_S = 0.2
_FIRST_BYTES = 1 << 20


class Limits:
    """The machine's limits beside a collective's results.

    Attributes:
        wire_gb_per_s: rate of plain sockets between the first two nodes, in each direction used;
            None with one node.
    """

    def __init__(self, ranks: Ranks, options: Options) -> None:
        """Measure the wire between the nodes, if there is one."""
        self._ranks, self._options = ranks, options
        self.wire_gb_per_s = self._measure_wire() if options.nnodes > 1 else None

    def copy_gb_per_s(self, size: int) -> float:
        """Measure one thread's memcpy of `size` bytes on rank 0, the others being idle."""
        return float(self._ranks.ask(_copy, size, what="measuring memcpy")[0])

    def busbw_gb_per_s(self, copy_gb_per_s: float) -> float | None:
        """Return the busbw that the limit allows; None where neither limit applies.

        Between nodes only those bytes count that every algorithm sends into or out of a node.
        """
        options, wire, op = self._options, self.wire_gb_per_s, self._options.collective
        if not CASES[op].has_data or options.world_size == 1:
            return None
        crossing = {options.node(a) != options.node(b) for a, b in options.pairs}
        if wire is None or crossing == {False}:
            return copy_gb_per_s
        if options.pairs:
            return wire / len(options.pairs) if crossing == {True} else None
        ranks = options.nproc if op == "all_to_all" else 1
        return (
            wire / ranks * busbw_factor(op, options.world_size) / busbw_factor(op, options.nnodes)
        )

    def _measure_wire(self) -> float:
        what, both_ways = "measuring the wire", self._options.collective in _BOTH_WAYS
        where = self._ranks.ask(_listen, what=what)[0]
        return float(self._ranks.ask(_wire, self._options.nproc, where, both_ways, what=what)[0])


def _copy(rank: Rank, size: int) -> float | None:
    return copy_gb_per_s(size) if rank.rank == 0 else None


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


def _listen(rank: Rank) -> tuple[str, int] | None:
    """On rank 0, listen on the address of its node."""
    if rank.rank != 0:
        return None
    rank.listener = socket.create_server((os.environ["HCCL_BENCH_ADDRESS"], 0))
    host, port = rank.listener.getsockname()[:2]
    return host, port


def _wire(rank: Rank, other: int, where: tuple[str, int], both_ways: bool) -> float | None:
    """On rank 0, receive from `other`, twice as much each time until it takes `_WIRE_S`."""
    if rank.rank not in (0, other):
        return None
    is_receiver = rank.rank == 0
    peers = accept(rank.listener) if is_receiver else connect(where)
    if is_receiver:
        rank.listener.close()
    num_bytes, elapsed_s = _FIRST_BYTES, 0.0
    try:
        while elapsed_s < _WIRE_S:
            num_bytes *= 2
            began = time.perf_counter()
            sends, receives = both_ways or not is_receiver, both_ways or is_receiver
            exchange(peers, num_bytes * sends, num_bytes * receives)
            if is_receiver:  # the peer continues until the connections are closed
                elapsed_s = time.perf_counter() - began
    except OSError:
        if is_receiver:
            raise
    finally:
        for peer in peers:
            peer.close()
    return num_bytes / elapsed_s / 1e9 if is_receiver else None
