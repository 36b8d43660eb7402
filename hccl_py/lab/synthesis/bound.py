"""The least time of a collective on a network, the cut that proves it, and what plans reach.

Times are Fractions in units of the whole data (`data`, or all blocks) at 1 kbit/s. All bounds are
cuts: the data that must cross a set of links, divided by their rate. Maximum flows find them. Links
that no message takes do not count.

- broadcast: the whole data must reach each rank from the root. The smallest minimum cut from the
  root is the bound, and trees can reach it (J. Edmonds, Edge-disjoint branchings, 1973).
- all_gather: the blocks of all ranks of a set of vertices must leave it, if the set lacks a rank.
  The worst set is found as in ForestColl (arXiv 2402.06787): a source gives every rank one block,
  and all blocks must flow to every rank. reduce_scatter: the same with all links reversed.
- all_reduce: the whole data must cross every cut. If the ranks are divided into p groups, an
  element needs 2(p-1) messages between groups, as gossip does (F. Harary and A. J. Schwenk, 1974).
  So 2(p-1) times the data must leave the groups.

Among many ranks there are too many cuts: `regions.py`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple, TypeVar

import networkx as nx
from networkx.algorithms.flow import edmonds_karp

from hccl_py.lab.simulation.costs import Costs, LinkCosts
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.lab.synthesis.regions import Bound, bound_of_regions
from hccl_py.plan.language import OpKind, Plan

Vertex = TypeVar("Vertex", bound=Hashable)

_MOST_FOR_ALL_GROUPINGS = 8
MOST_SEARCHED = 64  # ranks; beyond, only networks that look alike from each rank
_LARGE_BYTES = 256 << 20
_FREE = LinkCosts(0.0, 0.0, 0.0)
_ONLY_LINKS = Costs(_FREE, _FREE, reduce_us_per_mib=0.0)
_SOURCE = -1


def bound_of(collective: str, network: Network, root: int | None = None) -> Bound:
    """Return the bound of a collective; `root` is that of a broadcast."""
    network = network.taken
    if collective == "broadcast":
        assert root is not None
        return _broadcast(network, root)
    if network.world_size > MOST_SEARCHED:
        return bound_of_regions(collective, network)
    if collective == "all_gather":
        return _all_gather(network)
    if collective == "reduce_scatter":
        return _all_gather(network.reversed, is_reversed=True)
    return _all_reduce(network)


def _broadcast(network: Network, root: int) -> Bound:
    others = (rank for rank in range(network.world_size) if rank != root)
    cuts = [max_flow(network.kbit_per_s, root, rank) for rank in others]
    rate, side = min(cuts, key=lambda cut: cut[0])
    return Bound(Fraction(1, rate), _described(network, side))


def _all_gather(network: Network, *, is_reversed: bool = False) -> Bound:
    n = network.world_size
    worst, bottleneck = Fraction(0), ""
    sides: Iterable[set[int]] = [set(range(len(network.names))) - {rank} for rank in range(n)]
    # Newton's method: the worst cut for a time gives a longer time, until there is no worse cut.
    while True:
        found = [(_share(network, side), side) for side in sides]
        time, side = max(found, key=lambda one: one[0], default=(worst, set[int]()))
        if time <= worst:
            return Bound(worst / n, bottleneck)
        worst, bottleneck = time, _described(network, side, is_reversed=is_reversed)
        sides = _too_narrow(network, worst)


def _share(network: Network, side: set[int]) -> Fraction:
    num_blocks = sum(vertex < network.world_size for vertex in side)
    return Fraction(num_blocks, network.leaving(side))


def _too_narrow(network: Network, time: Fraction) -> list[set[int]]:
    """Return sets whose ranks' blocks cannot all leave within this time."""
    n, capacities = network.world_size, dict[Arc, int]()
    for arc, rate in network.kbit_per_s.items():
        capacities[arc] = rate * time.numerator
    for rank in range(n):
        capacities[_SOURCE, rank] = time.denominator
    cuts = [max_flow(capacities, _SOURCE, rank) for rank in range(n)]
    return [side - {_SOURCE} for flow, side in cuts if flow < n * time.denominator]


def _all_reduce(network: Network) -> Bound:
    n = network.world_size
    pairs = [pair for rank in range(1, n) for pair in ((0, rank), (rank, 0))]
    rate, side = min(
        (max_flow(network.kbit_per_s, *pair) for pair in pairs), key=lambda cut: cut[0]
    )
    best = Bound(Fraction(1, rate), _described(network, side))
    outward, inward = _Leaving(network), _Leaving(network.reversed)
    for groups in _groupings(n, outward):
        if len(groups) < 3:
            continue  # cuts
        rate = min(sum(map(leaving.of, groups)) for leaving in (outward, inward))
        time = Fraction(2 * (len(groups) - 1), rate)
        if time > best.time:
            parted = " | ".join(" ".join(map(str, sorted(group))) for group in groups)
            text = (
                f"ranks {parted}: {2 * (len(groups) - 1)} times the data must leave these groups, "
                f"which send {rate / 1000:g} Mbit/s together"
            )
            best = Bound(time, text)
    return best


class _Leaving:
    """The rate at which data can leave a group of ranks towards the others."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[frozenset[int], int] = {}

    def of(self, group: frozenset[int]) -> int:
        """Return the rate."""
        if group not in self._known:
            capacities = dict(self._network.kbit_per_s)
            unlimited = sum(capacities.values())
            for rank in range(self._network.world_size):
                arc = (_SOURCE, rank) if rank in group else (rank, _SOURCE - 1)
                capacities[arc] = unlimited
            self._known[group], _ = max_flow(capacities, _SOURCE, _SOURCE - 1)
        return self._known[group]


def _groupings(n: int, leaving: _Leaving) -> Iterator[list[frozenset[int]]]:
    """Yield divisions of the ranks into groups: all for few ranks, else by merging pairs."""
    if n <= _MOST_FOR_ALL_GROUPINGS:
        yield from _all_groupings(n)
        return
    groups = [frozenset([rank]) for rank in range(n)]
    while len(groups) > 2:
        yield groups
        # The pair with the highest rate between them: merging removes it from the links that count.
        one, other = max(
            combinations(groups, 2),
            key=lambda pair: (
                leaving.of(pair[0]) + leaving.of(pair[1]) - leaving.of(pair[0] | pair[1])
            ),
        )
        groups = [group for group in groups if group not in (one, other)] + [one | other]


def _all_groupings(n: int) -> Iterator[list[frozenset[int]]]:
    if n == 0:
        yield []
        return
    for groups in _all_groupings(n - 1):
        yield [*groups, frozenset([n - 1])]
        for at, group in enumerate(groups):
            yield [*groups[:at], group | {n - 1}, *groups[at + 1 :]]


def _described(network: Network, side: set[int], *, is_reversed: bool = False) -> str:
    n, crossing = network.world_size, list[str]()
    for tail, head in sorted(network.kbit_per_s):
        if tail in side and head not in side:
            real, arc = (network.reversed, (head, tail)) if is_reversed else (network, (tail, head))
            crossing.append(real.described(arc))
    here, there = (
        " ".join(str(rank) for rank in range(n) if (rank in side) == is_here)
        for is_here in (not is_reversed, is_reversed)
    )
    rate = network.leaving(side) / 1000
    return f"ranks {here} -> {there}, {rate:g} Mbit/s: {', '.join(crossing)}"


class Certificate(NamedTuple):
    """The quality of plans: times beside the bound, in the same units.

    Attributes:
        time: of the busiest link, which no call can beat.
        simulated: of a large call in virtual time, in which only links take time.
    """

    time: Fraction
    busiest: str
    bound: Bound
    simulated: float

    @property
    def share(self) -> float:
        """Share of the bound that a simulated call reaches, 0 to 1."""
        return float(self.bound.time) / self.simulated

    @property
    def rates(self) -> str:
        """Data per second, if only links take time, beside the bound."""
        times = self.simulated, float(self.bound.time)
        plans, most = (1 / time / 1000 for time in times)
        alone = float(self.bound.time / self.time)
        return (
            f"{plans:.4g} of at most {most:.4g} Mbit/s of the data in a simulated call; "
            f"the busiest link alone would allow {alone:.1%}: {self.busiest}"
        )

    def __str__(self) -> str:
        return f"{self.share:.1%} of the bound; the bottleneck is {self.bound.bottleneck}"


def certify(plans: Sequence[Plan], network: Network, bound: Bound) -> Certificate:
    """Find the busiest link of plans, one for each rank."""
    load = Counter[Arc]()
    for plan in plans:
        whole = plan.shape.data_chunks or plan.world_size * plan.shape.block_parts
        for op in plan.ops:
            if op.kind is not OpKind.SEND or op.src is None:
                continue
            for peer in op.peers:
                for arc in network.routes[plan.rank, peer]:
                    load[arc] += op.src.end - op.src.begin
    times = {arc: Fraction(count, whole * network.kbit_per_s[arc]) for arc, count in load.items()}
    busiest = max(times, key=lambda arc: times[arc])
    simulated = simulated_time(plans, network)
    return Certificate(times[busiest], network.described(busiest), bound, simulated)


def simulated_time(plans: Sequence[Plan], network: Network) -> float:
    """Return the time of a large call in which only links take time."""
    done = simulate(tuple(plans), Topology.of_network(network), _ONLY_LINKS, _LARGE_BYTES)
    return done.us / (_LARGE_BYTES * 8e-3 * 1e6)


def max_flow(
    capacities: Mapping[tuple[Vertex, Vertex], int], source: Vertex, target: Vertex
) -> tuple[int, set[Vertex]]:
    """Return the most that flows from source to target, and the source's side of a minimum cut."""
    graph: nx.DiGraph[Vertex] = nx.DiGraph()
    graph.add_nodes_from((source, target))
    graph.add_edges_from((*arc, {"capacity": most}) for arc, most in capacities.items())
    # The fastest algorithm of networkx on dense graphs of up to 64 vertices.
    flow, (side, _) = nx.minimum_cut(graph, source, target, flow_func=edmonds_karp)
    return flow, side
