"""Plans for networks: right, at their bound where that is known, never beyond it."""

from pathlib import Path

import pytest
from networks import (
    EVEN,
    ONE_WAY,
    PAIRS,
    RACKS,
    STAR,
    dragonfly,
    fat_tree,
    network_of,
    rails,
    random_links,
    torus,
)
from tiers import by_night

from hccl_py import Costs, LinkCosts, Topology, simulate
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED, synthesize
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

KNOWN = (PAIRS, STAR, RACKS, EVEN, ONE_WAY)


@pytest.fixture
def pairs(tmp_path: Path) -> Network:
    return network_of(PAIRS, tmp_path)


@pytest.mark.parametrize(
    ("links", "collective", "least"),
    [
        (ONE_WAY, "broadcast", 1.0),
        # A search for cheap trees reaches 79 to 88 %.
        *((torus(*sides), "broadcast", 1.0) for sides in ((3, 3), (8,), (2, 2, 2))),
        *by_night("plans", *((links, "all_reduce", 1.0) for links in KNOWN)),
        *by_night("plans", *((links, "broadcast", 1.0) for links in KNOWN if links != ONE_WAY)),
        # Whole blocks cannot share links of 50 and 100 Mbit/s alike; blocks in parts can.
        (PAIRS, "all_gather", 1.0),
        (PAIRS, "reduce_scatter", 1.0),
        (RACKS, "all_gather", 1.0),
        *by_night("plans", *((links, "all_gather", 1.0) for links in (STAR, EVEN, ONE_WAY))),
    ],
)
def test_share_of_the_bound(
    links: list[dict[str, object]], collective: str, least: float, tmp_path: Path
) -> None:
    found = synthesize(collective, network_of(links, tmp_path), most_chunks=12)
    assert found.certificate.share == pytest.approx(least, rel=0.07)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize(
    "links",
    [
        torus(3, 3),
        fat_tree(3, 3, over=1),
        fat_tree(3, 3, over=9, spines=2),
        rails(3, 3),
        dragonfly(3, 3, 20),
        STAR,
    ],
)
def test_certificate_says_what_a_simulation_of_the_file_says(
    links: list[dict[str, object]], collective: str, tmp_path: Path
) -> None:
    found = synthesize(collective, network_of(links, tmp_path), most_chunks=4)
    write_plans(tmp_path / "plan.json", found.plans, "about")
    topology = Topology.of_network(tmp_path / "network.json")
    num_bytes, free = 256 << 20, LinkCosts(0.0, 0.0, 0.0)
    what = f"{collective}=plan:{tmp_path}/plan.json"
    done = simulate(what, topology, Costs(free, free, 0.0), num_bytes)
    mbit_per_s = num_bytes * 8 / done.us
    most = 1 / float(found.certificate.bound.time) / 1000
    assert mbit_per_s / most == pytest.approx(found.certificate.share, rel=1e-3)
    assert 0.7 < found.certificate.share <= 1 + 1e-9


@pytest.mark.parametrize(
    "seed",
    [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly("plans")) for seed in range(2, 10))],
)
@pytest.mark.parametrize("collective", SYNTHESIZED)
def test_random_network_gets_plans_within_the_bound(
    seed: int, collective: str, tmp_path: Path
) -> None:
    network = network_of(random_links(seed), tmp_path)
    found = synthesize(collective, network, most_chunks=3)
    shares = [found.certificate.share, *(one.share for _, one in found.table)]
    assert all(0 < share <= 1 for share in shares), "faster than what is said to be impossible"
    assert shares[0] > 0.95 * max(shares)
    for plans in found.plans.values():
        verify(plans, COLLECTIVES[collective], in_place=True)


@pytest.mark.nightly("plans")
def test_uneven_pairs_beat_the_table_by_far(pairs: Network) -> None:
    found = synthesize("all_reduce", pairs)
    name, best = found.table[0]
    assert (found.name, name) == ("packed_trees", "mesh")
    # 2.33 times with 14 chunks; more chunks, which fill the links sooner, load them less alike.
    assert found.certificate.share / best.share == pytest.approx(700 / 300, rel=0.03)


@pytest.mark.nightly("plans")
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_even_network_keeps_the_algorithm_of_the_table(collective: str, tmp_path: Path) -> None:
    assert synthesize(collective, network_of(EVEN, tmp_path)).name == "mesh"


@pytest.mark.nightly("plans")
def test_fewer_chunks_cost_a_part_of_the_bound(pairs: Network) -> None:
    shares = [synthesize("all_reduce", pairs, most).certificate.share for most in (1, 10, 14)]
    assert shares == sorted(shares) and shares[0] < 0.9 and shares[-1] > 0.93


def test_table_that_serves_some_roots_only_is_no_rival(tmp_path: Path) -> None:
    spokes = [{"between": [0, rank], "mbit": 100} for rank in (1, 2, 3)]
    found = synthesize("broadcast", network_of(spokes, tmp_path), most_chunks=2)
    assert found.name == "packed_trees" and found.table == ()


def test_wrong_argument_gets_one_line(pairs: Network) -> None:
    with pytest.raises(InvalidArgumentError, match="expected one of all_reduce, .*; got barrier"):
        synthesize("barrier", pairs)
    with pytest.raises(InvalidArgumentError, match="expected 1 to 32 chunks, got 0"):
        synthesize("all_reduce", pairs, 0)
