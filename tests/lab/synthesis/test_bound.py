"""Bounds by maximum flow, against a search of all cuts."""

from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
from networks import EVEN, ONE_WAY, PAIRS, RACKS, STAR, network_of, random_links, slowest_cut

from hccl_py.lab.synthesis.bound import bound_of, max_flow

RANDOM = [pytest.param(random_links(seed), id=f"random-{seed}") for seed in range(12)]
ALL = [PAIRS, STAR, RACKS, EVEN, ONE_WAY, *RANDOM]


@pytest.mark.parametrize("links", ALL)
def test_bounds_are_those_of_the_worst_cut(links: list[dict[str, object]], tmp_path: Path) -> None:
    network = network_of(links, tmp_path).taken
    n = network.world_size
    for root in range(n):
        expected = slowest_cut(network, {root: 1}, None)
        assert bound_of("broadcast", network, root).time == expected
    each = dict.fromkeys(range(n), 1)
    assert bound_of("all_gather", network).time == slowest_cut(network, each, None) / n
    turned = slowest_cut(network.reversed, each, None) / n
    assert bound_of("reduce_scatter", network).time == turned
    # Every cut is a bound of all_reduce, groups may be a larger one.
    ways = (slowest_cut(network, {rank: 1}, to) for rank, to in permutations(range(n), 2))
    assert bound_of("all_reduce", network).time >= max(ways)


@pytest.mark.parametrize(
    ("links", "mbit", "text"),
    [
        (PAIRS, Fraction(700, 3), "ranks 0 | 1 | 2 | 3: 6 times the data must leave these groups"),
        (STAR, Fraction(50), "ranks 0 -> 1 2 3, 50 Mbit/s: 0 > switch 50 Mbit/s"),
        (RACKS, Fraction(50), "ranks 0 1 -> 2 3, 50 Mbit/s: rack 0 > rack 1 50 Mbit/s"),
        (EVEN, Fraction(200), "ranks 0 | 1 | 2 | 3: 6 times the data"),
        (ONE_WAY, Fraction(200, 3), "which send 400 Mbit/s together"),
    ],
)
def test_all_reduce_names_its_bottleneck(
    links: list[dict[str, object]], mbit: Fraction, text: str, tmp_path: Path
) -> None:
    bound = bound_of("all_reduce", network_of(links, tmp_path))
    assert 1 / bound.time == mbit * 1000 and text in bound.bottleneck


def test_more_ranks_than_are_parted_in_all_ways_still_get_a_bound_by_groups(tmp_path: Path) -> None:
    links = [{"between": [rank, "switch"], "mbit": 100} for rank in range(10)]
    bound = bound_of("all_reduce", network_of(links, tmp_path))
    assert bound.time == Fraction(2 * 9, 10 * 100_000)  # 2(n-1)/n of the data by every rank


@pytest.mark.parametrize(
    ("arcs", "most"),
    [
        ({("s", "a"): 1, ("s", "b"): 1, ("a", "b"): 1, ("a", "t"): 1, ("b", "t"): 1}, 2),
        ({("s", "a"): 5, ("a", "t"): 3}, 3),
        ({("a", "t"): 3}, 0),
    ],
)
def test_flow_is_what_its_cut_lets_through(arcs: dict[tuple[str, str], int], most: int) -> None:
    flow, side = max_flow(arcs, "s", "t")
    leaving = sum(c for (tail, head), c in arcs.items() if tail in side and head not in side)
    assert (flow, leaving) == (most, most) and "s" in side and "t" not in side
