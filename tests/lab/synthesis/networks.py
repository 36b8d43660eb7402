"""Networks for tests, and what a slow search says about them."""

import json
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
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
