"""Virtual time: by hand for small plans, one node against all, and what slows a call down."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_shapes import one_node
from thread_ranks import ThreadRanks

from hccl_py import Costs, LinkCosts, Topology, simulate
from hccl_py.algorithms.choice.tuner import min_message_bytes
from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.table import names_for, plans_for
from hccl_py.lab.simulation.costs import COSTS as COSTS_KEY
from hccl_py.lab.simulation.costs import PRESETS, Wiring, costs_from, written
from hccl_py.plan.language import Plan, PlanBuilder, PlanError, Shape, data
from hccl_py.plan.tiles import Cut
from hccl_py.transport.errors import InvalidArgumentError

MIB = 1 << 20
UP = LinkCosts(latency_us=1.0, message_us=0.25, us_per_mib=16.0)
OUT = LinkCosts(latency_us=5.0, message_us=1.0, us_per_mib=32.0, wire_us_per_mib=512.0)
COSTS = Costs(UP, OUT, reduce_us_per_mib=64.0)
FREE = LinkCosts(latency_us=0.5, message_us=0.0, us_per_mib=0.0)
ALL_REDUCE = [f"all_reduce={name}" for name in names_for("all_reduce")]

BAD = (
    None,
    float("nan"),
    float("inf"),
    -1,
    10**400,
    10**5000,
    "text",
    [None],
    [[]],
    {"text": 1},
    int,
)
CALLS: dict[str, Callable[[Any], object]] = {
    "^(what|algorithm): ": lambda v: simulate(v, Topology.even(2, 1), COSTS, 64),
    "topology": lambda v: simulate(ALL_REDUCE[0], v, COSTS, 64),
    "costs": lambda v: simulate(ALL_REDUCE[0], Topology.even(2, 1), v, 64),
    "num_bytes": lambda v: simulate(ALL_REDUCE[0], Topology.even(2, 1), COSTS, v),
    "root": lambda v: simulate("reduce=tree", Topology.even(2, 1), COSTS, 64, root=v),
    "item_bytes": lambda v: simulate(ALL_REDUCE[0], Topology.even(2, 1), COSTS, 64, item_bytes=v),
    "num_calls": lambda v: simulate(ALL_REDUCE[0], Topology.even(2, 1), COSTS, 64, num_calls=v),
    "nodes": Topology,
    "machines": lambda v: Topology(((0,), (1,)), machines=v),
    "late_us|straggler": lambda v: Topology(((0,), (1,)), late_us=v),
    "straggler": lambda v: Topology(((0,), (1,)), late_us={f"{type(v)}": 1}),
    "links_gbit|link": lambda v: Topology(((0,), (1,)), links_gbit={(0, 1): v}),
    "link": lambda v: Topology(((0,), (1,)), links_gbit={(0, f"{type(v)}"): 1}),
    "num_nodes": lambda v: Topology.even(v, 1),
    "ranks_per_node": lambda v: Topology.even(1, v),
    "latency_us": lambda v: replace(UP, latency_us=v),
    "wiring": lambda v: replace(UP, wiring=v),
    "scale_up": lambda v: replace(COSTS, scale_up=v),
    "warm_share": lambda v: replace(COSTS, warm_share=v),
    "cores_per_machine": lambda v: replace(COSTS, cores_per_machine=v),
}


@pytest.mark.parametrize("argument", CALLS)
def test_argument_that_makes_no_sense_is_named_in_one_line(argument: str) -> None:
    for bad in BAD:
        if bad is None and argument in ("root", "cores_per_machine"):
            continue
        with pytest.raises(InvalidArgumentError) as caught:
            CALLS[argument](bad)
        assert re.search(argument, str(caught.value))
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)


def test_one_message_takes_what_its_parts_take() -> None:
    mib = 65536 / MIB
    between = simulate("broadcast=direct", Topology.even(2, 1), COSTS, 65536)
    assert between.us == pytest.approx(2 * (1.0 + 32.0 * mib) + 512.0 * mib + 5.0)
    inside = simulate("broadcast=direct", Topology.even(1, 2), COSTS, 65536)
    assert inside.us == pytest.approx(2 * (0.25 + 16.0 * mib) + 1.0)


def test_algorithm_of_a_user_takes_as_long_as_the_same_one_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import hccl_py\nfrom hccl_py.algorithms import mesh, tree\n"
        "mine = hccl_py.algorithm('all_reduce', chunks=lambda n, nodes: n)(mesh.all_reduce)\n"
        "other = hccl_py.algorithm('reduce')(tree.reduce)\n"
    )
    for name, same in (("mine", "all_reduce=mesh"), ("other", "reduce=tree")):
        for what in (f"{file}:{name}", loaded(f"{file}:{name}")):
            found = simulate(what, Topology.even(2, 2), COSTS, MIB)
            assert found.us == simulate(same, Topology.even(2, 2), COSTS, MIB).us


def test_shared_memory_writes_once_and_reduces_in_place() -> None:
    mib = 65536 / MIB
    sent = 3 * 0.25 + 16.0 * mib
    reduced = 3 * 0.25 + 3 * 64.0 * mib
    done = simulate("all_reduce=one_shot", Topology.even(1, 4), COSTS, 65536)
    # The last message of a rank is on its way while the rank takes the others: latency is hidden.
    assert done.us == pytest.approx(sent + reduced, abs=1.01)
    assert done.us >= sent + reduced


@pytest.mark.parametrize("what", ALL_REDUCE)
@pytest.mark.parametrize("num_bytes", [MIB // 4, 2 * MIB])
def test_one_node_stands_for_alike_nodes(what: str, num_bytes: int) -> None:
    topology = Topology.even(4, 2)
    short = simulate(what, topology, COSTS, num_bytes)
    whole = simulate(what, topology, COSTS, num_bytes, shorten=False)
    assert short.us == pytest.approx(whole.us, rel=1e-9)
    assert whole.num_ranks == 8 and whole.num_left_out == 0
    assert short.num_ranks == (8 if what.endswith("=tree") else 2)
    if short.num_ranks == 2:
        assert all(short.messages[rank] <= whole.messages[rank] for rank in (0, 1))


def test_tiles_that_repeat_themselves_are_left_out() -> None:
    short = simulate("all_reduce=ring", Topology.even(2, 1), COSTS, 16 * MIB)
    whole = simulate("all_reduce=ring", Topology.even(2, 1), COSTS, 16 * MIB, shorten=False)
    assert short.num_left_out > short.num_tiles / 2
    assert short.us == pytest.approx(whole.us, rel=1e-9)


def test_engine_sends_as_many_messages() -> None:
    """Tiles and ops are the engine's: 3 ranks, two of them on a node; nothing is left out."""
    with ThreadRanks("aab") as ranks:
        nodes = ranks.communicators[0].nodes

        def count(comm: object, what: str, num_bytes: int) -> int:
            import numpy as np

            comm._state.plans.choose_by({"HCCL_ALGORITHM": what})  # type: ignore[attr-defined]
            before = sent_by(comm)
            comm.all_reduce(np.zeros(num_bytes // 4, np.float32))  # type: ignore[attr-defined]
            return sent_by(comm) - before

        for name in ("ring", "mesh", "tree", "halving_doubling", "hierarchical"):
            for num_bytes in (400_000, 3_000_000):
                what = f"all_reduce={name}"
                counted = ranks.run(lambda comm, w=what, b=num_bytes: count(comm, w, b))
                expected = simulate(what, Topology(nodes), COSTS, num_bytes, shorten=False)
                assert counted == [expected.messages[rank] for rank in range(3)], what


@pytest.mark.parametrize("ranks_of", ["aa", "aaa", "aab"])
@pytest.mark.parametrize("what", ["all_to_all=direct", "all_gather=mesh"])
def test_engine_cuts_blocks_into_as_many_messages(what: str, ranks_of: str) -> None:
    """Inside a node a block may be one long message."""
    n, collective = len(ranks_of), what.partition("=")[0]
    with ThreadRanks(ranks_of) as ranks:
        nodes = ranks.communicators[0].nodes

        def count(comm: object) -> int:
            import numpy as np

            comm._state.plans.choose_by({"HCCL_ALGORITHM": what})  # type: ignore[attr-defined]
            block = np.zeros(700_001, np.float32)
            given = np.tile(block, n) if collective == "all_to_all" else block
            before = sent_by(comm)
            getattr(comm, collective)(np.tile(block, n), given)
            return sent_by(comm) - before

        counted = ranks.run(count)
        expected = simulate(what, Topology(nodes), COSTS, n * 700_001 * 4, shorten=False)
        assert counted == [expected.messages[rank] for rank in range(n)]


def sent_by(comm: object) -> int:
    devices = comm.statistics()["devices"]  # type: ignore[attr-defined]
    return sum(device["messages"] for device in devices.values())


def test_small_slots_and_wide_ops_make_small_tiles() -> None:
    nodes = Topology.even(512, 8).nodes
    hierarchical = Cut(8 * 512, 512, 4096, min_message_bytes(nodes))
    assert hierarchical.tiles(64 * MIB // 4) == (256, 65536, 65536, 4096)
    one_shot = Cut(1, 1, 4096, min_message_bytes(nodes))
    assert one_shot.tiles(64 * MIB // 4)[:2] == (2048, 8192)


def test_ranks_without_anything_to_do_end_at_once() -> None:
    assert simulate("all_reduce=mesh", Topology.even(1, 1), COSTS, MIB).us == 0
    few = simulate("all_reduce=mesh", Topology.even(1, 8), COSTS, 4)
    assert 0 < few.us < 20 and few.messages[0] == few.messages[1] + 6 == 7


def test_straggler_holds_everybody_up_by_its_lateness() -> None:
    topology = Topology.even(2, 2)
    alone = simulate("all_reduce=mesh", topology, COSTS, MIB).us
    late = simulate("all_reduce=mesh", replace(topology, late_us={3: 1e4}), COSTS, MIB).us
    assert 1e4 < late <= 1e4 + alone


def test_ranks_before_a_straggler_fill_its_lane_and_go_on() -> None:
    topology = replace(Topology.even(1, 24), late_us={5: 1e4})
    done = simulate("all_reduce=ring", topology, COSTS, MIB)
    plain = simulate("all_reduce=ring", Topology.even(1, 24), COSTS, MIB)
    assert 1e4 < done.us <= 1e4 + plain.us and done.messages == plain.messages


def test_slow_link_slows_down_what_crosses_it() -> None:
    slow = replace(Topology.even(4, 1), links_gbit={(1, 2): 0.1})
    before = simulate("all_reduce=ring", Topology.even(4, 1), COSTS, MIB).us
    us = simulate("all_reduce=ring", slow, COSTS, MIB).us
    assert us > 6 / 4 * MIB * 8 / 100  # of 6 steps, a chunk each; 100 bits a us
    assert us > 3 * before
    unused = replace(slow, links_gbit={(0, 2): 0.1})  # a ring takes only neighbours
    assert simulate("all_reduce=ring", unused, COSTS, MIB).us == pytest.approx(before)


def test_ranks_share_the_wire_of_their_node() -> None:
    wire = replace(FREE, wire_us_per_mib=1000.0)
    own = replace(wire, wiring=Wiring.RANK)
    topology = Topology.even(2, 4)
    times = [
        simulate("all_reduce=mesh", topology, Costs(FREE, link, 0.0), 8 * MIB).us
        for link in (wire, own)
    ]
    # Every rank sends the eighths of four peers, twice: four ranks 4 x the data in all.
    assert times[0] == pytest.approx(4 * 8 * 1000, rel=0.02)
    # A wire of one's own stands still between the two steps of a tile.
    assert 2 < times[0] / times[1] <= 4


@pytest.mark.nightly("plans")
@pytest.mark.timeout(60)
def test_plans_with_many_copies_among_thousands_of_ranks_are_shortened() -> None:
    done = simulate("all_gather=bruck", Topology.even(1024, 8), "cloud25", 256 * MIB)
    assert done.num_ranks == 8 and done.num_left_out > done.num_tiles // 2


def test_burst_is_for_a_wire_that_stood_still() -> None:
    link = replace(FREE, wire_us_per_mib=1000.0, burst_bytes=MIB)
    costs, topology = Costs(FREE, link, 0.0), Topology.even(2, 1)
    first = simulate("all_reduce=mesh", topology, costs, MIB).us
    steady = simulate("all_reduce=mesh", topology, costs, MIB, num_calls=8).us
    assert first < 10 and steady == pytest.approx(1000, rel=0.01)


def test_ranks_share_the_cores_of_their_machine() -> None:
    spread = simulate("all_reduce=mesh", Topology.even(1, 4), COSTS, MIB).us
    crowded = replace(COSTS, cores_per_machine=1)
    assert simulate("all_reduce=mesh", Topology.even(1, 4), crowded, MIB).us > 3 * spread
    emulated = replace(Topology.even(2, 2), machines=(0, 0))
    apart = simulate("all_reduce=mesh", Topology.even(2, 2), COSTS, MIB).us
    assert simulate("all_reduce=mesh", emulated, crowded, MIB).us > apart


def test_memory_limits_calls_that_fit_no_cache() -> None:
    slow = replace(COSTS, memory_us_per_mib=1000.0, cache_bytes=8 * MIB)
    topology = Topology.even(1, 2)
    fits, large = (simulate("all_reduce=mesh", topology, slow, n * MIB).us for n in (4, 8))
    assert fits == simulate("all_reduce=mesh", topology, COSTS, 4 * MIB).us
    assert large > 8 * 1000


def test_plans_run_as_algorithms_do_and_a_hang_is_named() -> None:
    nodes = one_node(4)
    plans = plans_for("all_reduce", "ring", nodes)
    topology = Topology(nodes)
    named = simulate("all_reduce=ring", topology, COSTS, MIB)
    assert simulate(plans, topology, COSTS, MIB).us == named.us
    builder = PlanBuilder(Plan("all_reduce", "mine", 1, 4, shape=Shape(4)), nodes)
    builder.recv(0, data[2])
    with pytest.raises(PlanError, match="waits for ever, as do 2 more"):
        simulate([plans[0], builder.finish(), *plans[2:]], topology, COSTS, MIB)


@pytest.mark.parametrize(
    ("what", "topology", "num_bytes", "problem"),
    [
        (
            "all_reduce=star",
            Topology.even(1, 2),
            MIB,
            "expected FILE:FUNCTION, plan:FILE or one of",
        ),
        ((), Topology.even(1, 2), MIB, "ranks 0..1 in order, got 0"),
        ("all_reduce=one_shot", Topology.even(1, 20000), MIB, "messages in a tile of 20000 ranks"),
    ],
)
def test_wrong_arguments_are_named(
    what: str, topology: Topology, num_bytes: int, problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        simulate(what, topology, COSTS, num_bytes)


def test_costs_are_named_too(tmp_path: Path) -> None:
    topology = Topology.even(2, 8)
    known = simulate("all_reduce=mesh", topology, PRESETS["gaudi2"], MIB)
    assert simulate("all_reduce=mesh", topology, "gaudi2", MIB) == known
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({COSTS_KEY: written(replace(COSTS, cores_per_machine=8))}))
    costs = costs_from(path)
    assert simulate("all_reduce=mesh", topology, path, MIB) == simulate(
        "all_reduce=mesh", topology, costs, MIB
    )
    with pytest.raises(InvalidArgumentError, match="expected gaudi2, .* or a file, got 'gaudi9'"):
        simulate("all_reduce=mesh", topology, "gaudi9", MIB)


def test_wrong_topologies_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="each rank from 0 on in one node"):
        Topology(((0, 1), (1,)))
    with pytest.raises(InvalidArgumentError, match="link .1, 4."):
        replace(Topology.even(2, 1), links_gbit={(1, 4): 1.0})
