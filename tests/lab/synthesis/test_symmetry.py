"""Trees for networks that look the same from each rank."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from networks import PAIRS, STAR, between, network_of

from hccl_py.lab.synthesis.symmetry import MOVED, moved_plans, moved_tree
from hccl_py.lab.synthesis.synthesize import synthesize
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError


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


@pytest.mark.parametrize("sides", [(2,), (5,), (8,), (3, 3), (4, 2), (2, 2, 2)])
@pytest.mark.parametrize("collective", MOVED)
def test_moved_plans_are_right(sides: tuple[int, ...], collective: str, tmp_path: Path) -> None:
    network = network_of(torus(*sides), tmp_path)
    tree = moved_tree(network)
    assert tree is not None
    plans = moved_plans(collective, "moved", network, tree)
    for in_place in (False, True):
        verify(plans, COLLECTIVES[collective], in_place=in_place)


def test_networks_with_switches_or_uneven_links_have_no_moves(tmp_path: Path) -> None:
    assert moved_tree(network_of(STAR, tmp_path)) is None
    uneven = [*torus(5)[1:], between(0, 1, 500)]
    assert moved_tree(network_of(uneven, tmp_path)) is None
    assert moved_tree(network_of(PAIRS, tmp_path)) is not None  # by XOR


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_torus_is_full_in_a_simulated_call(collective: str, tmp_path: Path) -> None:
    found = synthesize(collective, network_of(torus(3, 3), tmp_path))
    assert found.name == "packed_trees" and found.certificate.share > 0.99


def test_more_than_64_ranks_need_a_network_that_moves_map_to_itself(tmp_path: Path) -> None:
    found = synthesize("all_gather", network_of(torus(9, 8), tmp_path))
    assert found.certificate.share > 0.9
    line = [between(rank, rank + 1, 100) for rank in range(65)]
    with pytest.raises(InvalidArgumentError, match="among more than 64 ranks expected one of"):
        synthesize("all_gather", network_of(line, tmp_path))
