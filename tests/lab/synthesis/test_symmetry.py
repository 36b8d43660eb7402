"""Moves that map networks to themselves, and trees that are moved to every root."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from networks import (
    ONE_WAY,
    PAIRS,
    RACKS,
    STAR,
    between,
    dragonfly,
    fat_tree,
    network_of,
    rails,
    torus,
)
from tiers import by_night

from hccl_py.lab.synthesis.bound import bound_of
from hccl_py.lab.synthesis.moved import MOVED, moved_candidates
from hccl_py.lab.synthesis.nearest import nearest_trees
from hccl_py.lab.synthesis.symmetry import symmetry_of
from hccl_py.lab.synthesis.synthesize import synthesize
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

Links = list[dict[str, Any]]
ALIKE = {
    "ring of 2": torus(2),
    "ring of 5": torus(5),
    "ring of 8": torus(8),
    "torus 3 x 3": torus(3, 3),
    "torus 4 x 2": torus(4, 2),
    "hypercube": torus(2, 2, 2),
    "one way": ONE_WAY,
    "pairs": PAIRS,
    "racks": RACKS,
    "fat tree": fat_tree(3, 2, over=3),
    "two spines": fat_tree(2, 4, over=2, spines=2),
    "rails": rails(3, 2),
    "dragonfly": dragonfly(3, 2, 50),
    "uneven ends": [*fat_tree(2, 2, over=1), between(0, 2, 10), between(1, 3, 20)],
}
alike = pytest.mark.parametrize("name", ALIKE)


@alike
def test_moves_keep_all_rates_and_take_the_roots_to_every_rank_once(
    name: str, tmp_path: Path
) -> None:
    network = network_of(ALIKE[name], tmp_path)
    symmetry = symmetry_of(network)
    assert symmetry is not None
    reached = sorted(int(move[root]) for move in symmetry.moves for root in symmetry.roots)
    assert reached == list(range(network.world_size))
    rates, n = network.kbit_per_s, network.world_size
    for move in symmetry.moves:
        assert sorted(move) == list(range(n))
        for tail, head in rates:
            if tail < n and head < n:
                assert rates[int(move[tail]), int(move[head])] == rates[tail, head]
    for arc, kind in symmetry.kind_of.items():
        assert rates[arc] == rates[kind]
    assert sum(symmetry.num_alike.values()) == len(rates)


def test_only_networks_that_look_alike_have_moves(tmp_path: Path) -> None:
    assert symmetry_of(network_of(STAR, tmp_path)) is None
    assert symmetry_of(network_of([*torus(5)[1:], between(0, 1, 500)], tmp_path)) is None
    for name, many in (("ring of 8", 8), ("torus 4 x 2", 8), ("rails", 6), ("uneven ends", 2)):
        symmetry = symmetry_of(network_of(ALIKE[name], tmp_path))
        assert symmetry is not None and len(symmetry.moves) == many


@alike
@pytest.mark.parametrize("collective", MOVED)
def test_moved_plans_are_right(name: str, collective: str, tmp_path: Path) -> None:
    network = network_of(ALIKE[name], tmp_path)
    least = bound_of(collective, network).time
    candidates = moved_candidates(collective, "moved", network, least)
    assert candidates
    for plans, in_place in product(candidates, (False, True)):
        verify(plans, COLLECTIVES[collective], in_place=in_place)


def test_nearest_trees_have_no_detours_and_load_all_kinds_of_links_alike(tmp_path: Path) -> None:
    network = network_of(torus(4, 4), tmp_path)
    symmetry = symmetry_of(network)
    assert symmetry is not None
    trees = nearest_trees(network, symmetry, 4)
    loads = dict.fromkeys(symmetry.num_alike, 0)
    for tree in trees:
        depths = {0: 0}
        while len(depths) < 16:
            depths |= {
                rank: depths[up] + 1 for rank, up in enumerate(tree) if up in depths and rank
            }
        assert max(depths.values()) == 4 and sum(depths.values()) == 32
        for rank in range(1, 16):
            loads[symmetry.kind_of[tree[rank], rank]] += 1
    assert set(loads.values()) == {4 * 15 // 4}


@pytest.mark.parametrize(
    ("sides", "collective"),
    [
        *(((8,), one) for one in MOVED),
        *(((3, 3), one) for one in MOVED),
        *(((4, 4), one) for one in MOVED),
        *by_night("plans", *((sides, one) for sides in ((6,), (4, 2), (5, 3)) for one in MOVED)),
    ],
)
def test_a_ring_and_a_torus_are_full_in_a_simulated_call(
    sides: tuple[int, ...], collective: str, tmp_path: Path
) -> None:
    found = synthesize(collective, network_of(torus(*sides), tmp_path))
    assert found.name == "packed_trees" and found.certificate.share > 0.99


@pytest.mark.parametrize(
    ("links", "least"),
    [
        (torus(9, 8), 0.99),
        (fat_tree(5, 14, over=28), 0.98),
        *by_night("plans", (rails(9, 8), 0.98), (dragonfly(9, 8, 25), 0.9)),
    ],
)
def test_more_than_64_ranks(links: Links, least: float, tmp_path: Path) -> None:
    found = synthesize("all_gather", network_of(links, tmp_path))
    assert found.name == "packed_trees" and found.certificate.share > least


def test_more_than_64_ranks_need_a_network_that_moves_map_to_itself(tmp_path: Path) -> None:
    line = [between(rank, rank + 1, 100 + rank) for rank in range(65)]
    network = network_of(line, tmp_path)
    for collective in ("all_gather", "broadcast"):
        with pytest.raises(InvalidArgumentError, match="64 ranks expected a network that looks al"):
            synthesize(collective, network)


@pytest.mark.nightly("plans")
@pytest.mark.parametrize(("over", "name"), [(22, "packed_trees"), (5, "two_trees")])
def test_broadcast_among_more_than_64_ranks_has_right_plans_for_every_root(
    over: float, name: str, tmp_path: Path
) -> None:
    found = synthesize("broadcast", network_of(fat_tree(6, 11, over), tmp_path), 4)
    assert found.name == name and list(found.plans) == list(range(66))
    assert found.certificate.share > 0.3
    for root in (0, 1, 10, 11, 65):
        verify(found.plans[root], COLLECTIVES["broadcast"])
