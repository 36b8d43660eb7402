"""The report of an emulated job: the network's time, and the calls simulated on more nodes."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hccl_py.algorithms.table import names_for
from hccl_py.lab.emulation.cluster import Cluster
from hccl_py.lab.emulation.record import CallKind
from hccl_py.lab.emulation.steps import Steps
from hccl_py.lab.simulation.costs import PRESETS, Costs, LinkCosts
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

_FACTORS = (1, 2, 4)
_MOST_S = 30.0  # no simulation begins later
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


def lines(cluster: Cluster, ranks_per_node: int, steps: Steps | None) -> Iterator[str]:
    """Yield the lines on the network's time per step, here and simulated on more nodes."""
    rate = f"{cluster.bytes_per_s * 8e-6:g} Mbit/s, {cluster.latency_s * 1e6:g} us"
    number = len(cluster.links)
    links = f", {number} slower link{'s' * (number > 1)}" * bool(number)
    yield f"emulated network: {cluster.num_nodes} nodes of {ranks_per_node}, {rate}{links}"
    if steps is None:
        yield "  no call between nodes was recorded, so the network's time is unknown"
        return
    what = "a step" if steps.num_steps else "the job"
    if steps.num_steps:
        yield f"  {steps.num_steps} steps were measured, of {_ms(steps.step_ms)} (median)"
        if steps.num_left_out:
            yield f"  {steps.num_left_out} more were not: not all ranks reported their calls"
    elif steps.num_left_out:
        yield "  too few steps were measured, because not all ranks reported their calls (a killed"
        yield "  rank lacks its last 0.5 s): all reported calls count as one step"
    else:
        yield "  fewer than two steps of a torch optimizer ended: all calls count as one step"
    share = f", {100 * steps.network_ms / steps.step_ms:.0f} % of it" if steps.num_steps else ""
    yield f"  the network took {_ms(steps.network_ms)} of {what}{share}"
    if (wire := steps.wire) is not None:
        busy = f"{wire.num_bytes / 1e6:.3g} MB, {_ms(wire.busy_ms)} of {what}"
        yield f"  the busiest wire was {wire.name}: {busy}"
    if steps.calls:
        number_of_calls = sum(steps.calls.values())
        took = f"took {_ms(steps.calls_ms)}; as simulated:"
        yield f"  the {number_of_calls:.3g} collectives of {what} {took}"
        yield f"  {'nodes':>7}  {'ranks':>7}  {'collectives':>12}"
        for one in forecasts(cluster, ranks_per_node, steps.calls):
            left_out = f"  ({one.num_left_out} kinds left out)" * bool(one.num_left_out)
            ms = "-" if one.ms is None else _ms(one.ms)
            yield f"  {one.num_nodes:7}  {one.num_ranks:7}  {ms:>12}{left_out}"
    if steps.num_transfers:
        yield f"  not simulated: {steps.num_transfers:.3g} sends of {what} to other nodes"


def forecasts(
    cluster: Cluster, ranks_per_node: int, calls: Mapping[CallKind, float]
) -> Iterator[Forecast]:
    """Simulate a step's calls on the cluster, and on two and four times as many nodes.

    Every call takes its fastest algorithm. Nodes have a core for each rank.
    """
    costs, until_s = _costs(cluster), time.monotonic() + _MOST_S
    links = {pair: rate * 8e-9 / _ETHERNET_SHARE for pair, rate in cluster.links.items()}
    for factor in _FACTORS:
        nodes = Topology.even(factor * cluster.num_nodes, ranks_per_node).nodes
        topology = Topology(nodes, links_gbit=links)
        us, num_left_out = 0.0, 0
        # Largest first: when time is up, small ones are left out.
        for kind, number in sorted(calls.items(), key=lambda one: -one[0].num_bytes * one[1]):
            size = kind.num_bytes
            if COLLECTIVES[kind.collective].blocks:  # blocks keep their size
                size *= factor
            one_us = None
            if time.monotonic() < until_s:
                one_us = _fastest_us(kind.collective, topology, costs, size)
            us += number * (one_us or 0.0)
            num_left_out += one_us is None
        ms = us / 1e3 if num_left_out < len(calls) else None
        yield Forecast(len(nodes), topology.world_size, ms, num_left_out)


def _costs(cluster: Cluster) -> Costs:
    assumed = PRESETS["office1"]
    out = LinkCosts(
        latency_us=cluster.latency_s * 1e6,
        message_us=assumed.scale_out.message_us,
        us_per_mib=assumed.scale_out.us_per_mib,
        wire_us_per_mib=_MIB / cluster.bytes_per_s * 1e6 * _PACKET_BYTES / _PAYLOAD_BYTES,
        burst_bytes=cluster.burst_bytes,
    )
    return Costs(assumed.scale_up, out, assumed.reduce_us_per_mib)


def _fastest_us(collective: str, topology: Topology, costs: Costs, size: int) -> float | None:
    times = []
    for name in names_for(collective):
        try:
            times.append(simulate(f"{collective}={name}", topology, costs, size).us)
        except InvalidArgumentError:  # not for this many ranks, or this few bytes
            continue
    return min(times, default=None)


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.3g} ms"
