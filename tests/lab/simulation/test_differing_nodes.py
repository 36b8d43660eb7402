"""Stragglers, slow links, uneven nodes: what is shortened is what all ranks take, one by one."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tiers import by_night

from hccl_py import Costs, LinkCosts, Topology, simulate
from hccl_py.algorithms.table import names_for
from hccl_py.lab.simulation import run
from hccl_py.lab.simulation.costs import PRESETS

MIB = 1 << 20
COSTS = Costs(LinkCosts(1.0, 0.25, 16.0), LinkCosts(5.0, 1.0, 32.0, 512.0), reduce_us_per_mib=64.0)
ALL_REDUCE = [f"all_reduce={name}" for name in names_for("all_reduce")]
EVEN = Topology.even(8, 8)
MOST_SECONDS, MOST_BYTES = 60.0, 4 << 30


def of_sizes(*sizes: int) -> Topology:
    nodes, first = [], 0
    for size in sizes:
        nodes.append(tuple(range(first, first + size)))
        first += size
    return Topology(tuple(nodes))


WORLDS = {
    "straggler": replace(EVEN, late_us={17: 2000.0}),
    "links": replace(EVEN, links_gbit={(3, 4): 1.0, (0, 6): 10.0}),
    "uneven": of_sizes(8, 8, 12, 4, 8, 16, 7, 1),
    "all": replace(of_sizes(12, 20, 32), late_us={5: 300.0, 40: 900.0}, links_gbit={(0, 2): 2.0}),
}


@pytest.mark.parametrize("what", ALL_REDUCE)
@pytest.mark.parametrize("world", WORLDS)
def test_64_ranks_that_differ_take_as_long_as_one_by_one(what: str, world: str) -> None:
    for costs in (COSTS, PRESETS["gaudi2"]):
        short = simulate(what, WORLDS[world], costs, 2 * MIB)
        whole = simulate(what, WORLDS[world], costs, 2 * MIB, shorten=False)
        assert short.us == pytest.approx(whole.us, rel=1e-9)
        assert (short.error_us, whole.num_left_out) == (0.0, 0)
        assert short.num_ranks == 64


@pytest.mark.parametrize("what", ALL_REDUCE)
@pytest.mark.parametrize("exact_messages", [1000, *by_night("plans", 5000)])
def test_tiles_counted_by_their_mean_are_off_by_little_more_than_is_said(
    what: str, exact_messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_EXACT_MESSAGES", exact_messages)
    for world in WORLDS.values():
        whole = simulate(what, world, COSTS, 8 * MIB, shorten=False)
        short = simulate(what, world, COSTS, 8 * MIB)
        assert abs(short.us - whole.us) <= short.error_us + 0.1 * whole.us


@pytest.mark.nightly("scale")
@pytest.mark.parametrize("world", ["late", "links", "uneven"])
@pytest.mark.parametrize(  # one_shot takes minutes
    "what", sorted(set(ALL_REDUCE) - {"all_reduce=one_shot"})
)
def test_4096_ranks_of_which_some_differ_take_a_minute_at_most_and_little_memory(
    what: str, world: str
) -> None:
    """All_reduce at 64 MB, in a process of its own: its time and memory."""
    script = """
import resource, sys
from hccl_py import Topology, simulate
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.simulation.costs import PRESETS
sizes = [8] * 512 if sys.argv[2] != "uneven" else [8] * 500 + [6] * 16
late_us = {17: 2000.0} if sys.argv[2] == "late" else {}
links_gbit = {(3, 4): 10.0} if sys.argv[2] == "links" else {}
topology = Topology(nodes_of(sizes), late_us=late_us, links_gbit=links_gbit)
done = simulate(sys.argv[1], topology, PRESETS["gaudi2"], 64 << 20)
used = resource.getrusage(resource.RUSAGE_SELF)
print(done.us, done.error_us, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""
    command = [sys.executable, "-c", script, what, world]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    us, error_us, seconds, num_bytes = map(float, ran.stdout.split())
    assert 0 <= error_us < us
    assert seconds < MOST_SECONDS
    assert num_bytes < MOST_BYTES
