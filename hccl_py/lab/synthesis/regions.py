"""A bound of the time that needs no search of cuts: that of regions of a network, such as racks.

The regions are single ranks, and the parts that remain without all links of one class.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import networkx as nx

from hccl_py.lab.synthesis.network import Arc, Network


class Bound(NamedTuple):
    """A lower bound of the time, and a text that names the bottleneck."""

    time: Fraction
    bottleneck: str


def bound_of_regions(collective: str, network: Network) -> Bound:
    """Return the bound of a collective without a root."""
    best = Bound(Fraction(0), "")
    for regions in _divisions(network):
        ranks = [sum(vertex < network.world_size for vertex in region) for region in regions]
        out = [network.leaving(region) for region in regions]
        into = [network.reversed.leaving(region) for region in regions]
        for found in _of_division(collective, ranks, out, into):
            if found[0] > best.time:
                time, text, at = found
                first = min(regions[at])
                others = f" and {ranks[at] - 1} more" * (ranks[at] > 1)
                best = Bound(time, f"{text} (rank {first}{others}, one of {len(regions)} regions)")
    return best


def _of_division(
    collective: str, ranks: Sequence[int], out: Sequence[int], into: Sequence[int]
) -> Iterator[tuple[Fraction, str, int]]:
    """Yield bounds of regions with so many ranks, and rates out of them and into them."""
    n, num = sum(ranks), len(ranks)
    sends = {"reduce_scatter": [n - one for one in ranks], "all_gather": ranks}
    takes = {"reduce_scatter": ranks, "all_gather": [n - one for one in ranks]}
    each = [n] * num  # the whole data, in an all_reduce
    for rates, blocks, way in (
        (out, sends.get(collective, each), "out of"),
        (into, takes.get(collective, each), "into"),
    ):
        at = max(range(num), key=lambda one: Fraction(blocks[one], rates[one]))
        text = f"links of {rates[at] / 1000:g} Mbit/s {way} a region"
        yield Fraction(blocks[at], n * rates[at]), text, at
        if collective == "all_reduce":
            text = f"links of {sum(rates) / 1000:g} Mbit/s {way} all regions together"
            yield Fraction(2 * (num - 1), sum(rates)), text, 0


def _divisions(network: Network) -> Iterator[list[set[int]]]:
    """Yield the ranks alone, and the parts that remain without the links of each class.

    Links are of one class if they are alike, and their ends have alike links. Every part has ranks.
    """
    n, rates = network.world_size, network.kbit_per_s
    yield [{rank} for rank in range(n)]
    colours: list[int] = [vertex < n for vertex in range(len(network.names))]
    near: list[list[tuple[int, int, bool]]] = [[] for _ in colours]
    for (tail, head), rate in rates.items():
        near[tail].append((head, rate, True))
        near[head].append((tail, rate, False))
    while True:
        looks = [
            (colours[at], tuple(sorted((colours[v], *more) for v, *more in near[at])))
            for at in range(len(colours))
        ]
        number = {look: at for at, look in enumerate(dict.fromkeys(looks))}
        if len(number) == len(set(colours)):
            break
        colours = [number[look] for look in looks]
    classes: dict[frozenset[int], set[Arc]] = {}
    for tail, head in rates:
        classes.setdefault(frozenset((colours[tail], colours[head])), set()).add((tail, head))
    for arcs in classes.values():
        graph: nx.Graph[int] = nx.Graph(arc for arc in rates if arc not in arcs)
        graph.add_nodes_from(range(n))
        regions = [one for one in nx.connected_components(graph) if min(one) < n]
        if len(regions) > 1:
            yield regions
