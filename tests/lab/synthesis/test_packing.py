"""Trees: the cheapest one against all, and packings that reach their bound."""

from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from networks import PAIRS, network_of, torus

from hccl_py.lab.synthesis.arborescence import arborescence
from hccl_py.lab.synthesis.bound import bound_of
from hccl_py.lab.synthesis.disjoint import disjoint_trees
from hccl_py.lab.synthesis.packing import Tree, TreeTask, pack, time_of


def is_tree(parents: list[int] | tuple[int, ...], root: int) -> bool:
    for vertex in range(len(parents)):
        for _ in parents:
            vertex = parents[vertex]
        if vertex != root:
            return False
    return parents[root] == root


@pytest.mark.parametrize("seed", range(30))
def test_arborescence_is_the_cheapest_of_all_trees(seed: int) -> None:
    random, n = Random(seed), 4 + seed % 2
    root = random.randrange(n)
    arcs = {(a, b): random.randint(1, 9) + 0.0 for a in range(n) for b in range(n) if a != b}
    for arc in random.sample(sorted(arcs), n):
        if arc[0] != root:
            del arcs[arc]  # a missing way

    def cost(parents: list[int] | tuple[int, ...]) -> float:
        pairs = [(parents[v], v) for v in range(n) if v != root]
        return sum(arcs.get(pair, 1e9) for pair in pairs)

    every = (one for one in product(range(n), repeat=n) if is_tree(one, root))
    costs = np.full((n, n), np.inf)
    for arc, each in arcs.items():
        costs[arc] = each
    found = arborescence(costs, root)
    assert is_tree(found, root) and cost(found) == min(map(cost, every))


def test_packing_loads_every_link_of_pairs_alike(tmp_path: Path) -> None:
    network = network_of(PAIRS, tmp_path)
    tasks = [TreeTask((0, 1, 2, 3), goes_up=True, goes_down=True)] * 14
    best = Fraction(14 * 3, 700_000)  # chunks x links of a tree, by all links of a direction
    trees = pack(network, tasks, best, 1e-6)
    assert time_of(network, trees) == best
    assert all(is_tree(one.up, one.root) and is_tree(one.down, one.root) for one in trees)


def test_packing_is_the_same_each_time(tmp_path: Path) -> None:
    network = network_of(PAIRS, tmp_path)
    tasks = [TreeTask((2,), goes_up=False, goes_down=True)] * 5
    assert pack(network, tasks, Fraction(1, 10**5), 0.3) == pack(
        network, tasks, Fraction(1, 10**5), 0.3
    )


@pytest.mark.parametrize(
    ("links", "num"), [(PAIRS, 6), (torus(7), 2), (torus(3, 4), 4), (torus(2, 2, 2, 2), 8)]
)
@pytest.mark.parametrize("widest", [False, True])
def test_disjoint_trees_reach_the_bound(
    links: list[dict[str, object]], num: int, widest: bool, tmp_path: Path
) -> None:
    network = network_of(links, tmp_path)
    for root in (0, network.world_size - 1):
        trees = disjoint_trees(network, root, num, widest)
        assert len(trees) == num and all(is_tree(one, root) for one in trees)
        every = [Tree(root, (), one) for one in trees]
        assert time_of(network, every) == num * bound_of("broadcast", network, root).time
