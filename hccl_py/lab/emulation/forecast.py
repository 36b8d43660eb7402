"""What the simulator says that the recorded calls of a step take, here and on more nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from hccl_py.algorithms.table import names_for
from hccl_py.lab.emulation.cluster import Cluster
from hccl_py.lab.emulation.record import Kind
from hccl_py.lab.simulation.costs import Costs, LinkCosts
from hccl_py.lab.simulation.presets import PRESETS
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

_FACTORS = (1, 2, 4)
_MOST_S = 30.0  # no kind of call is begun later
_MIB = 1 << 20
_PACKET_BYTES = 1514  # as the emulated wires count them
_PAYLOAD_BYTES = 1448
_ETHERNET_SHARE = _PACKET_BYTES / 1538
"""`Topology.links_gbit` counts preamble and gap, the emulated wires do not."""


class Forecast(NamedTuple):
    """The calls of a step on some nodes."""

    num_nodes: int
    num_ranks: int
    ms: float | None  # None: nothing could be simulated
    num_left_out: int  # kinds of calls that took too long to simulate, or could not be


def forecasts(cluster: Cluster, ranks_per_node: int, calls: Mapping[Kind, float]) -> list[Forecast]:
    """Simulate a step's calls on the cluster, and on two and four times as many nodes.

    Every call takes its fastest algorithm. Nodes have a core for each rank.
    """
    costs, until_s = _costs(cluster), time.monotonic() + _MOST_S
    found = []
    for factor in _FACTORS:
        topology = Topology.even(factor * cluster.num_nodes, ranks_per_node)
        links = {
            pair: speed.bytes_per_s * 8e-9 / _ETHERNET_SHARE
            for pair, speed in cluster.links.items()
        }
        topology = Topology(topology.nodes, links_gbit=links)
        us, num_left_out = 0.0, 0
        # Largest first: small ones are what may be left out.
        for kind, number in sorted(calls.items(), key=lambda one: -one[0].num_bytes * one[1]):
            one_us = None
            if time.monotonic() < until_s:
                one_us = _fastest_us(kind, cluster, topology, costs)
            us += number * (one_us or 0.0)
            num_left_out += one_us is None
        ms = us / 1e3 if num_left_out < len(calls) else None
        found.append(Forecast(len(topology.nodes), topology.world_size, ms, num_left_out))
    return found


def _costs(cluster: Cluster) -> Costs:
    assumed = PRESETS["office1"]
    wire_us = _MIB / cluster.card.bytes_per_s * 1e6 * _PACKET_BYTES / _PAYLOAD_BYTES
    out = assumed.scale_out
    link = LinkCosts(
        cluster.latency_s * 1e6,
        out.message_us,
        out.us_per_mib,
        wire_us,
        burst_bytes=cluster.card.burst_bytes,
    )
    return Costs(assumed.scale_up, link, assumed.reduce_us_per_mib)


def _fastest_us(kind: Kind, cluster: Cluster, topology: Topology, costs: Costs) -> float | None:
    size, before = kind.num_bytes, topology.world_size // len(topology.nodes) * cluster.num_nodes
    if COLLECTIVES[kind.collective].blocks:  # blocks of the size that they had
        size = size // before * topology.world_size
    times = []
    for name in names_for(kind.collective):
        try:
            times.append(simulate(f"{kind.collective}={name}", topology, costs, size).us)
        except InvalidArgumentError:  # not for this many ranks, or this few bytes
            continue
    return min(times, default=None)
