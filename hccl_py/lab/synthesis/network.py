"""A network as a graph: ranks, switches, directed links with a rate, routes of messages."""

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from hccl_py.plan.language import Nodes

Arc = tuple[int, int]
"""A directed link between two vertices."""


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
        """The links that a message crosses, by sender and receiver; some pairs have no route.

        A route is the fastest, and the shortest of several. Of routes that are as good, receivers
        take turns. Ranks do not forward for others.
        """
        found: dict[Arc, tuple[Arc, ...]] = {}
        for source in range(self.world_size):
            for target, way in self._ways(source).items():
                found[source, target] = way
        return found

    @cached_property
    def taken(self) -> "Network":
        """The same network without the links that are on no route."""
        on_ways = {arc for route in self.routes.values() for arc in route}
        rates = {arc: rate for arc, rate in self.kbit_per_s.items() if arc in on_ways}
        return Network(self.world_size, self.names, rates, self.nodes)

    @cached_property
    def reversed(self) -> "Network":
        """The same network with every link reversed."""
        turned = {(head, tail): rate for (tail, head), rate in self.kbit_per_s.items()}
        return Network(self.world_size, self.names, turned, self.nodes)

    def leaving(self, side: Set[int]) -> int:
        """Return the rate of the links from these vertices to others."""
        rates = self.kbit_per_s.items()
        return sum(rate for (tail, head), rate in rates if tail in side and head not in side)

    def described(self, arc: Arc) -> str:
        """Return the text of a link with its rate."""
        tail, head = (self.names[vertex] for vertex in arc)
        return f"{tail} > {head} {self.kbit_per_s[arc] / 1000:g} Mbit/s"

    def _ways(self, source: int) -> dict[int, tuple[Arc, ...]]:
        # Dijkstra for the widest route: the first entry of a vertex is final.
        heap: list[tuple[float, int, int, int]] = [(float("-inf"), 0, source, source)]
        done: dict[int, tuple[float, int]] = {}
        before: dict[int, list[int]] = {}  # by vertex, those before it on routes that are as good
        while heap:
            negative_width, hops, here, previous = heapq.heappop(heap)
            if here in done:
                if done[here] == (negative_width, hops):
                    before[here].append(previous)
                continue
            done[here], before[here] = (negative_width, hops), [previous]
            if here != source and here < self.world_size:
                continue
            for head, rate in self._out[here]:
                heapq.heappush(heap, (max(negative_width, -rate), hops + 1, head, here))
        return {
            target: self._way(source, target, before)
            for target in before
            if target != source and target < self.world_size
        }

    @staticmethod
    def _way(source: int, target: int, before: dict[int, list[int]]) -> tuple[Arc, ...]:
        """Return the route; of several that are as good the receivers take turns (d-mod-k)."""
        way, here, turn = list[Arc](), target, target
        while here != source:
            turn, at = divmod(turn, len(before[here]))
            way.append((before[here][at], here))
            here = way[-1][0]
        return tuple(reversed(way))

    @cached_property
    def _out(self) -> list[list[tuple[int, int]]]:
        out: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for (tail, head), rate in sorted(self.kbit_per_s.items()):
            out[tail].append((head, rate))
        return out
