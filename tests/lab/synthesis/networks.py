"""Networks for tests, and what a slow search says about them."""

import json
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.network_file import read_network


def between(here: int | str, there: int | str, mbit: float) -> dict[str, Any]:
    return {"between": [here, there], "mbit": mbit}


def network_of(links: Iterable[dict[str, Any]], folder: Path) -> Network:
    path = folder / "network.json"
    path.write_text(json.dumps({"links": list(links)}))
    return read_network(path)


PAIRS = [
    *(between(0, 1, 50), between(2, 3, 50), between(0, 2, 100)),
    *(between(1, 3, 100), between(0, 3, 200), between(1, 2, 200)),
]
"""Every rank has a link of 50, one of 100 and one of 200 Mbit/s."""

STAR = [between(rank, "switch", mbit) for rank, mbit in enumerate((50, 100, 200, 200))]
RACKS = [
    *(between(rank, f"rack {rank // 2}", 100) for rank in range(4)),
    between("rack 0", "rack 1", 50),
]


def torus(*sides: int) -> list[dict[str, Any]]:
    """Return the links of a grid whose rows are rings."""
    points = list(product(*map(range, sides)))
    number = {point: at for at, point in enumerate(points)}
    links = set()
    for point in points:
        for axis, side in enumerate(sides):
            there = (*point[:axis], (point[axis] + 1) % side, *point[axis + 1 :])
            links.add(tuple(sorted((number[point], number[there]))))
    return [between(*pair, 1000) for pair in sorted(links)]


def fat_tree(racks: int, per_rack: int, over: float, spines: int = 1) -> list[dict[str, Any]]:
    """Link racks to spines, whose links to a rack have 1/over of the rate of its ranks."""
    up = 100 * per_rack / over / spines
    return [
        *(between(rank, f"rack {rank // per_rack}", 100) for rank in range(racks * per_rack)),
        *(between(f"rack {r}", f"spine {s}", up) for r in range(racks) for s in range(spines)),
    ]


def rails(nodes: int, per_node: int) -> list[dict[str, Any]]:
    """Link each rank to the switch of its node, and to that of the ranks with its local rank."""
    every = list(product(range(nodes), range(per_node)))
    return [
        *(between(node * per_node + place, f"node {node}", 400) for node, place in every),
        *(between(node * per_node + place, f"rail {place}", 100) for node, place in every),
    ]


def dragonfly(groups: int, per_group: int, between_groups: float) -> list[dict[str, Any]]:
    """Link each two groups, which have one router each."""
    return [
        *(between(rank, f"g{rank // per_group}", 100) for rank in range(groups * per_group)),
        *(between(f"g{a}", f"g{b}", between_groups) for a, b in combinations(range(groups), 2)),
    ]


EVEN = [between(here, there, 100) for here, there in combinations(range(4), 2)]
ONE_WAY = [{"from": rank, "to": (rank + 1) % 4, "mbit": 100} for rank in range(4)]


def random_links(seed: int) -> list[dict[str, Any]]:
    """Link 3 to 5 ranks at random, with a switch or without; every rank reaches every other."""
    random = Random(seed)
    n = random.randint(3, 5)
    rates = (10, 20, 50, 100, 70)
    links: list[dict[str, Any]] = []
    for here, there in combinations(range(n), 2):
        if random.random() < 0.8:
            links.append({"from": here, "to": there, "mbit": random.choice(rates)})
            links.append({"from": there, "to": here, "mbit": random.choice(rates)})
    return links + [between(rank, "switch", random.choice(rates)) for rank in range(n)]


def slowest_cut(network: Network, num_blocks: dict[int, int], target: int | None) -> Fraction:
    """Try every set of vertices: blocks inside by the rate that leaves it, while a rank is outside.

    `target`: this one is outside; None: any one is.
    """
    ranks = range(network.world_size)
    worst = Fraction(0)
    for bits in range(1 << len(network.names)):
        side = {vertex for vertex in range(len(network.names)) if bits >> vertex & 1}
        outside = [rank for rank in ranks if rank not in side]
        blocks = sum(num_blocks.get(rank, 0) for rank in side)
        if blocks and outside and target in (None, *outside):
            arcs = network.kbit_per_s.items()
            rate = sum(each for (a, b), each in arcs if a in side and b not in side)
            worst = max(worst, Fraction(blocks, rate))
    return worst
