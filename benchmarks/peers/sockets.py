"""Times only the bytes that must cross between two hosts, over plain sockets.

The first ranks of the hosts have two connections, as two ranks of hccl have for collectives. Each
sends what its host must send in any algorithm, while it receives as much. In a broadcast and a
reduce one of them only sends. The other ranks do nothing.
"""

from __future__ import annotations

import os
import socket
from functools import partial

import numpy as np

from benchmarks.peers.library import ROOT, Array, Call, Library, open_communicator
from hccl_py.bench.collective.sockets import accept, connect, exchange
from hccl_py.quantities import busbw_factor


def open_sockets() -> Library:
    """Open the sockets; a Communicator sends the port to the other host."""
    within = open_communicator()
    other, address = within.world_size // 2, os.environ["MASTER_ADDR"]
    peers: list[socket.socket] = []
    where = np.zeros(1)
    if within.rank == ROOT:
        with socket.create_server((address, 0)) as listener:
            where[0] = listener.getsockname()[1]
            within.slowest(where)  # the others have zero there
            peers = accept(listener)
    else:
        within.slowest(where)
        if within.rank == other:
            peers = connect((address, int(where[0])))

    def bind(op: str, input: Array, output: Array) -> Call:
        if not peers:
            return lambda: None
        larger = max(input.nbytes, output.nbytes)
        ranks = other if op == "all_to_all" else 1
        num_bytes = int(larger * busbw_factor(op, 2)) * ranks or 1
        sends = op != ("reduce" if within.rank == ROOT else "broadcast")
        receives = op != ("broadcast" if within.rank == ROOT else "reduce")
        return partial(exchange, peers, num_bytes * sends, num_bytes * receives)

    return within._replace(bind=bind, has_result=False)
