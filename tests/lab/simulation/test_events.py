"""What a simulation says about each rank, message and link; and networks of links."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hccl_py.lab.simulation.costs import Costs, LinkCosts
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.language import Plan, PlanBuilder, PlanError, Shape, data

MIB = 1 << 20
FREE = LinkCosts(0.0, 0.0, 0.0)
ONLY_LINKS = Costs(FREE, FREE, 0.0)
US_PER_MIB_AT_1_MBIT = MIB * 8.0


def network_of(tmp_path: Path, *links: tuple[object, object, float]) -> Topology:
    path = tmp_path / "network.json"
    named = [{"between": [one, other], "mbit": mbit} for one, other, mbit in links]
    path.write_text(json.dumps({"links": named}))
    return Topology.of_network(path)


def test_events_agree_with_the_result_and_with_the_plan() -> None:
    topology = Topology.even(2, 2)
    plain = simulate("all_reduce=ring", topology, "cloud25", MIB)
    done = simulate("all_reduce=ring", topology, "cloud25", MIB, events=True)
    events = done.events
    assert plain.events is None and events is not None
    assert done.us == pytest.approx(plain.us) and events.end_us.max() == pytest.approx(done.us)
    assert np.all(np.diff(events.begin_us) >= 0) and np.all(events.arrives_us >= events.end_us)
    is_message = events.peer >= 0
    sent = Counter(events.rank[is_message].tolist())
    assert sent == done.messages == dict.fromkeys(range(4), 6 * done.num_tiles)
    assert set(events.chunk.tolist()) == set(range(4))
    assert np.array_equal(is_message, events.link >= 0)
    assert len(events.links) == 4 and 0 < max(events.busy_us()) <= done.us
    # The work of a rank's thread does not overlap.
    for rank in range(4):
        mine = ~is_message & (events.rank == rank)
        assert np.all(events.begin_us[mine][1:] >= events.end_us[mine][:-1] - 1e-9)


@pytest.mark.parametrize("name", ["halving_doubling", "ring", "mesh", "hierarchical"])
@pytest.mark.parametrize("num_bytes", [4, 1000, 100_012, 5 * MIB + 4])
def test_call_with_events_takes_as_long_as_one_without(name: str, num_bytes: int) -> None:
    # Chunks differ by an element here, and without events one node is simulated for all.
    for nodes in (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 2), (3, 4, 5))):
        if name == "halving_doubling" and len(nodes[0]) == 3:
            continue
        call = f"all_reduce={name}", Topology(nodes), "office1", num_bytes
        assert simulate(*call, events=True).us == pytest.approx(simulate(*call).us, rel=1e-3)


def test_critical_path_reaches_from_the_begin_to_the_end() -> None:
    topology = Topology(((0, 1), (2, 3)), late_us={2: 5000.0})
    events = simulate("all_reduce=ring", topology, "cloud25", MIB, events=True).events
    assert events is not None
    path = events.critical()
    assert events.end_us[path[-1]] == pytest.approx(events.end_us.max())
    assert (events.rank[path[0]], events.begin_us[path[0]]) == (2, 5000.0)
    gaps = events.begin_us[path[1:]] - events.end_us[path[:-1]]
    assert gaps.max() < 60  # latencies only


def test_messages_share_the_links_of_a_network(tmp_path: Path) -> None:
    # Two racks: four messages cross the slow link at the same time in each direction.
    ends = [(rank, "ab"[rank // 4], 1000.0) for rank in range(8)]
    topology = network_of(tmp_path, *ends, ("a", "b", 100.0))
    done = simulate("all_to_all=direct", topology, ONLY_LINKS, 8 * MIB, events=True)
    least_us = 4 * 4 * US_PER_MIB_AT_1_MBIT / 100
    assert least_us <= done.us <= 1.05 * least_us
    assert done.events is not None
    slow = [at for at, name in enumerate(done.events.links) if "100 Mbit/s" in name]
    assert done.events.busy_us()[slow] == pytest.approx([least_us] * 2)


def test_message_that_waits_on_its_way_leaves_later_links_to_others(tmp_path: Path) -> None:
    # Rank 0 sends to 1 and then to 2, whose message waits 8 s for the slow link to the switch. Rank
    # 3 sends to 2 meanwhile.
    topology = network_of(
        tmp_path, (0, "switch", 1.0), (1, "switch", 1.0), (2, "switch", 4.0), (3, "switch", 4.0)
    )
    plans = []
    for rank, pairs in enumerate(([1, 2], [0], [3, 0], [2])):
        header = Plan("all_reduce", "few", rank, 4, shape=Shape(1))
        plan = PlanBuilder(header, topology.nodes)
        for peer in pairs:
            if rank in (0, 3):
                plan.send([peer], data[0])
            else:
                plan.recv(peer, data[0])
        plans.append(plan.finish())
    events = simulate(plans, topology, ONLY_LINKS, 4096, events=True).events
    assert events is not None
    us = 4096 / MIB * US_PER_MIB_AT_1_MBIT  # on a link of 1 Mbit/s

    def arrival(rank: int, peer: int) -> float:
        (at,) = set(events.arrives_us[(events.rank == rank) & (events.peer == peer)].tolist())
        return at

    assert arrival(3, 2) == pytest.approx(us / 4)
    assert (arrival(0, 1), arrival(0, 2)) == (pytest.approx(us), pytest.approx(2 * us))


def test_message_without_a_route_is_rejected(tmp_path: Path) -> None:
    topology = network_of(tmp_path, (0, 1, 100), (1, 2, 100), (2, 3, 100))
    with pytest.raises(PlanError, match="rank 2, to which the network has no route"):
        simulate("all_reduce=one_shot", topology, "cloud25", MIB)
