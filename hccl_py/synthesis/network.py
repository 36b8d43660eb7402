"""A network as a graph: ranks, switches, and directed links with a rate.

Two files describe one. A topology file is JSON with `links`, each `{"between": [0, 1], "mbit": 50}`
(both directions) or `{"from": 0, "to": "rack", "mbit": 100}` (one); numbers are ranks, other names
are switches. A matrix is what `hccl-bench --validate --json` writes. A matrix cannot tell whether a
rank's links share a network card, because each was measured alone. Unless the caller says that the
links are separate, a node is taken to have one card as fast as the fastest of its links, in each
direction.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

Arc = tuple[int, int]
"""A directed link between two vertices."""

_MOST_RANKS = 64
_KBIT_PER_GB_PER_S = 8e6
_TWO_DIGITS = 2


@dataclass(frozen=True)
class Network:
    """Vertices 0 to `world_size` - 1 are the ranks; further ones are switches, which only forward.

    Attributes:
        names: of all vertices.
        kbit_per_s: the rate of each link.
        nodes: the ranks of every node.
    """

    world_size: int
    names: tuple[str, ...]
    kbit_per_s: Mapping[Arc, int]
    nodes: Nodes

    @cached_property
    def routes(self) -> dict[Arc, tuple[Arc, ...]]:
        """The links that a message crosses, by sender and receiver: the fastest way, then the
        shortest. No rank forwards for others. Ranks without a way are missing."""
        found: dict[Arc, tuple[Arc, ...]] = {}
        for source in range(self.world_size):
            for target, way in self._ways(source).items():
                found[source, target] = way
        return found

    @cached_property
    def reversed(self) -> "Network":
        """The same with every link turned round."""
        turned = {(head, tail): rate for (tail, head), rate in self.kbit_per_s.items()}
        return Network(self.world_size, self.names, turned, self.nodes)

    def spelt(self, arc: Arc) -> str:
        """Spell a link with its rate."""
        tail, head = (self.names[vertex] for vertex in arc)
        return f"{tail} > {head} {self.kbit_per_s[arc] / 1000:g} Mbit/s"

    def _ways(self, source: int) -> dict[int, tuple[Arc, ...]]:
        # Dijkstra for the widest way; its first entries of a vertex are final.
        heap: list[tuple[float, int, tuple[int, ...]]] = [(float("-inf"), 0, (source,))]
        done: dict[int, tuple[Arc, ...]] = {}
        while heap:
            negative_width, hops, way = heapq.heappop(heap)
            here = way[-1]
            if here in done:
                continue
            done[here] = tuple(zip(way, way[1:], strict=False))
            if here != source and here < self.world_size:
                continue
            for head, rate in self._out[here]:
                entry = max(negative_width, -rate), hops + 1, (*way, head)
                heapq.heappush(heap, entry)
        return {
            vertex: way for vertex, way in done.items() if vertex not in (source,) and way
            and vertex < self.world_size
        }

    @cached_property
    def _out(self) -> list[list[tuple[int, int]]]:
        out: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for (tail, head), rate in sorted(self.kbit_per_s.items()):
            out[tail].append((head, rate))
        return out


def read_network(path: Path, *, separate_links: bool = False) -> Network:
    """Read a topology file or a matrix.

    Args:
        path: of the file.
        separate_links: of a matrix: the links of a node share nothing.

    Raises:
        InvalidArgumentError: it cannot be read, is neither, or ranks are not connected.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: expected JSON: {error}") from error
    try:
        links = document.get("links") if isinstance(document, dict) else None
        if not isinstance(links, list) or not links or not all(isinstance(x, dict) for x in links):
            raise ValueError(
                'expected "links": [...], a topology file or what hccl-bench --validate --json wrote'
            )
        if "gb_per_s" in links[0]:
            network = _of_matrix(links, separate_links)
        else:
            network = _of_topology(links)
        _check_connected(network)
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    return network


def _of_topology(links: list[dict[str, Any]]) -> Network:
    given = [one for at, link in enumerate(links) for one in _ends(link, f"links[{at}]")]
    ranks = sorted({end for *ends, _ in given for end in ends if isinstance(end, int)})
    _check_ranks(ranks)
    switches = sorted({end for *ends, _ in given for end in ends if isinstance(end, str)})
    number: dict[int | str, int] = {name: at for at, name in enumerate([*ranks, *switches])}
    rates: dict[Arc, int] = {}
    for tail, head, rate in given:
        arc = number[tail], number[head]
        rates[arc] = rates.get(arc, 0) + rate  # parallel links
    return Network(
        len(ranks), tuple(map(str, number)), rates, tuple((rank,) for rank in ranks)
    )


def _ends(link: dict[str, Any], where: str) -> Iterator[tuple[int | str, int | str, int]]:
    expected = (
        '{"between": [0, 1], "mbit": 50} or {"from": 0, "to": "switch", "mbit": 50}, ranks as '
        "numbers from 0 on, switches as names"
    )
    mbit, keys = link.get("mbit"), set(link)
    if keys == {"between", "mbit"}:
        ends = link["between"]
    else:
        ends = [link.get("from"), link.get("to")] if keys == {"from", "to", "mbit"} else None
    good = isinstance(ends, list) and len(ends) == 2 and ends[0] != ends[1]
    good = good and all(type(end) in (int, str) and end not in (-1, "") for end in ends or ())
    good = good and type(mbit) in (int, float) and mbit is not None and 1e-3 <= mbit < 1e9
    if not good or ends is None or mbit is None:
        raise ValueError(f"{where}: expected {expected}; got {json.dumps(link)[:100]}")
    rate = round(mbit * 1000)
    yield ends[0], ends[1], rate
    if "between" in keys:
        yield ends[1], ends[0], rate


def _of_matrix(links: list[dict[str, Any]], separate: bool) -> Network:
    measured: dict[Arc, int] = {}
    crossing: set[Arc] = set()
    for at, link in enumerate(links):
        source, target, rate = link.get("from"), link.get("to"), link.get("gb_per_s")
        good = type(source) is int and type(target) is int and source != target
        if not good or not isinstance(rate, int | float) or not 0 < rate < 1e6:
            expected = '"from", "to" and "gb_per_s" of a pair of ranks'
            raise ValueError(f"links[{at}]: expected {expected}; got {json.dumps(link)[:100]}")
        measured[source, target] = _rounded(rate * _KBIT_PER_GB_PER_S)
        if link.get("between_nodes", True):
            crossing.add((source, target))
    n = 1 + max(map(max, measured))
    _check_ranks(sorted({rank for arc in measured for rank in arc}))
    missing = [(a, b) for a in range(n) for b in range(n) if a != b and (a, b) not in measured]
    if missing:
        raise ValueError(f"expected every pair of {n} ranks; there is no link from, to {missing[0]}")
    nodes = _nodes(n, set(measured) - crossing)
    names = list(map(str, range(n)))
    if separate:
        return Network(n, tuple(names), measured, nodes)
    rates = {arc: rate for arc, rate in measured.items() if arc not in crossing}
    for node in nodes if len(nodes) > 1 else ():
        _add_card(rates, names, node, {arc: measured[arc] for arc in crossing})
    for (source, target) in sorted(crossing):
        tail, head = (_card(names, nodes, rank, way) for rank, way in ((source, "out"), (target, "in")))
        rates[tail, head] = max(rates.get((tail, head), 0), measured[source, target])
    return Network(n, tuple(names), rates, nodes)


def _add_card(
    rates: dict[Arc, int], names: list[str], node: tuple[int, ...], crossing: Mapping[Arc, int]
) -> None:
    """Add what all messages that leave a node share, and what all that enter it share.

    Each is a vertex before a link as fast as the fastest of the node's.
    """
    sends = max(rate for (source, _), rate in crossing.items() if source in node)
    takes = max(rate for (_, target), rate in crossing.items() if target in node)
    label = " ".join(map(str, node))
    first = len(names)
    names += [f"{label} card", f"{label} out", f"{label} in", f"{label} card in"]
    card, out, into, card_in = range(first, first + 4)
    rates[card, out], rates[into, card_in] = sends, takes
    for rank in node:
        rates[rank, card] = sends
        rates[card_in, rank] = takes


def _card(names: list[str], nodes: Nodes, rank: int, way: str) -> int:
    node = next(node for node in nodes if rank in node)
    return names.index(f"{' '.join(map(str, node))} {way}")


def _nodes(n: int, inside: set[Arc]) -> Nodes:
    nodes: list[tuple[int, ...]] = []
    for rank in range(n):
        if not any(rank in node for node in nodes):
            mates = [mate for mate in range(n) if mate == rank or (rank, mate) in inside]
            nodes.append(tuple(mates))
    return tuple(nodes)


def _rounded(kbit_per_s: float) -> int:
    """Round to two digits: more is noise, and what is even shall look even."""
    whole = max(1, round(kbit_per_s))
    return max(1, round(whole, _TWO_DIGITS - len(str(whole))))


def _check_ranks(ranks: list[int]) -> None:
    if ranks != list(range(len(ranks))) or not 2 <= len(ranks) <= _MOST_RANKS:
        raise ValueError(f"expected links of ranks 0, 1, ..., at most {_MOST_RANKS}; got {ranks}")


def _check_connected(network: Network) -> None:
    """Make sure that everything can come from everyone to everyone, through ranks or switches."""
    for one in (network, network.reversed):
        reached, todo = {0}, [0]
        while todo:
            here = todo.pop()
            new = {head for (tail, head) in one.routes if tail == here} - reached
            reached |= new
            todo += new
        if lost := set(range(network.world_size)) - reached:
            raise ValueError(f"expected a way between all ranks; rank {min(lost)} and 0 have none")


def time_of(num_parts: int, whole: int, kbit_per_s: int) -> Fraction:
    """Return the time of parts of a whole on a link, in units of the whole at 1 kbit/s."""
    return Fraction(num_parts, whole * kbit_per_s)
