"""What the bytes that must cross between two hosts take alone, over plain sockets.

The first rank of each host has two connections to the other, as many as two ranks of hccl use for
collectives, and sends what its host must send in any algorithm, while it receives as much. For a
broadcast and a reduce one of them only sends. The other ranks do nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from benchmarks.peers.library import ROOT, Array, Call, Library, open_communicator
from hccl_py.bench.collective.cases import CASES

_NUM_CONNECTIONS = 2
_OUTGOING, _INCOMING = memoryview(bytes(1 << 20)), memoryview(bytearray(1 << 20))
_TIMEOUT_S = 20.0
"""For the other end to connect, and then for each byte to come or to go."""


def open_sockets() -> Library:
    """Open what moves the bytes; a Communicator tells the other host where to connect."""
    within = open_communicator()
    other = within.world_size // 2
    peers: list[socket.socket] = []
    where = np.zeros(1)
    if within.rank == ROOT:
        with socket.create_server((os.environ["MASTER_ADDR"], 0)) as listener:
            listener.settimeout(_TIMEOUT_S)
            where[0] = listener.getsockname()[1]
            within.slowest(where)  # the others have zero there
            peers = [listener.accept()[0] for _ in range(_NUM_CONNECTIONS)]
    else:
        within.slowest(where)
        if within.rank == other:
            address = os.environ["MASTER_ADDR"], int(where[0])
            peers = [socket.create_connection(address, _TIMEOUT_S) for _ in range(_NUM_CONNECTIONS)]
    for peer in peers:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def bind(op: str, input: Array, output: Array) -> Call:
        if not peers:
            return lambda: None
        larger = max(input.nbytes, output.nbytes)
        ranks = other if op == "all_to_all" else 1
        num_bytes = int(larger * CASES[op].busbw_factor(2)) * ranks or 1
        sends = op != ("reduce" if within.rank == ROOT else "broadcast")
        receives = op != ("broadcast" if within.rank == ROOT else "reduce")
        return partial(exchange, peers, num_bytes * sends, num_bytes * receives)

    return within._replace(bind=bind, has_result=False)


def exchange(peers: Sequence[socket.socket], to_send: int, to_receive: int) -> None:
    """Send and receive so many bytes, an equal part of them over each connection.

    The connections are non-blocking: each is asked in turn for as much as it takes and has.

    Raises:
        OSError: one failed, the other end closed it too early, or nothing moved for 20 s.
    """
    n = len(peers)
    left = [
        [total * (at + 1) // n - total * at // n for at in range(n)]
        for total in (to_send, to_receive)
    ]
    moved_s = time.monotonic()
    while any(map(any, left)):
        before = list(map(sum, left))
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
        elif time.monotonic() > moved_s + _TIMEOUT_S:
            raise TimeoutError(f"{before} bytes were still to be sent and to come")
        else:
            os.sched_yield()  # the other end may need this core
