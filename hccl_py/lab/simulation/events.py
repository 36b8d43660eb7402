"""What happened in a simulated call, as arrays: `simulate(..., events=True).events`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.language import Plan

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Events:
    """A row for each work of a rank's thread, and for each message on a link, by its begin.

    A message has a row for each link of a network that it crosses, else one for its wires.

    Attributes:
        begin_us, end_us: of the work, or of the time that the message takes of the link.
        arrives_us: when the receiver can see the message; of a work its end.
        rank, op, tile: whose, the index in its plan, and the part of the call.
        chunk: the first that the op names.
        peer: the receiver; -1: it is a work.
        link: an index of `links`; -1: it is a work.
        links: names.
    """

    begin_us: Times
    end_us: Times
    arrives_us: Times
    rank: Numbers
    op: Numbers
    tile: Numbers
    chunk: Numbers
    peer: Numbers
    link: Numbers
    links: tuple[str, ...]

    def busy_us(self) -> Times:
        """Return how long each link carried messages."""
        is_message = self.link >= 0
        spans = (self.end_us - self.begin_us)[is_message]
        busy = np.zeros(len(self.links))
        np.add.at(busy, self.link[is_message], spans)
        return busy

    def critical(self) -> list[int]:
        """Return the rows of a chain that ends last, each of which the next had to wait for."""
        before: dict[tuple[int, ...], list[int]] = {}
        for row in range(len(self.rank)):
            for key in self._gives(row):
                before.setdefault(key, []).append(row)
        chain = [int(np.argmax(self.arrives_us))] if len(self.rank) else []
        while chain:
            row = chain[-1]
            begin, nearly = float(self.begin_us[row]), 1e-6 * float(self.arrives_us[chain[0]])
            found = (-1.0, -1)
            for one in (one for key in self._needs(row) for one in before.get(key, ())):
                is_arrival = self.peer[one] >= 0 and self.peer[row] < 0
                ready = float((self.arrives_us if is_arrival else self.end_us)[one])
                # A message that came earlier waited for the thread, not the thread for it.
                is_early = is_arrival and ready < begin - nearly
                if one < row and ready <= begin + nearly and not is_early:
                    found = max(found, (ready, one))
            if found[1] < 0:
                break
            chain.append(found[1])
        return chain[::-1]

    def _gives(self, row: int) -> list[tuple[int, ...]]:
        rank, peer, link = (int(each[row]) for each in (self.rank, self.peer, self.link))
        if peer < 0:
            return [(0, rank), (1, rank, int(self.op[row]), int(self.tile[row]))]
        return [(2, link), (3, peer)]

    def _needs(self, row: int) -> list[tuple[int, ...]]:
        rank, peer, link = (int(each[row]) for each in (self.rank, self.peer, self.link))
        if peer < 0:
            return [(0, rank), (3, rank)]
        return [(1, rank, int(self.op[row]), int(self.tile[row])), (2, link)]


def events_of(
    rows: Sequence[tuple[float, ...]], plans: Sequence[Plan], topology: Topology
) -> Events:
    """Make arrays of rows as `VirtualTime.happened` has them."""
    table = np.array(rows, np.float64).reshape(-1, 8)
    table = table[np.lexsort((table[:, 2], table[:, 0]))]
    rank, op, tile, peer, link = table[:, 3:].astype(np.int64).T
    firsts = [[(op.src or op.dst or (0, 0))[1] for op in plan.ops] for plan in plans]
    chunk = np.array([firsts[r][o] for r, o in zip(rank, op, strict=True)], np.int64)
    if topology.network is not None:
        network = topology.network
        names = tuple(map(network.described, network.kbit_per_s))
    else:
        node_of = np.empty(topology.world_size, np.int64)
        for at, node in enumerate(topology.nodes):
            node_of[list(node)] = at
        pair = node_of[rank] * len(topology.nodes) + node_of[peer]
        is_near = node_of[rank] == node_of[peer]  # inside a node each pair of ranks counts alone
        pair = np.where(is_near, len(topology.nodes) ** 2 + rank * topology.world_size + peer, pair)
        used, index = np.unique(pair[peer >= 0], return_inverse=True)
        link = np.full(len(rank), -1)
        link[peer >= 0] = index
        names = tuple(_name(int(one), len(topology.nodes), topology.world_size) for one in used)
    begin, end, arrives = table[:, :3].T
    return Events(begin, end, arrives, rank, op, tile, chunk, peer, link, names)


def _name(pair: int, num_nodes: int, n: int) -> str:
    rest = pair - num_nodes**2
    if rest >= 0:
        return f"rank {rest // n} > rank {rest % n}"
    return f"node {pair // num_nodes} > node {pair % num_nodes}"
