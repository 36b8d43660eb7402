"""Where ranks are, how some of them differ, and the changes of `--what-if`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.simulation.costs import Costs, wire_us_per_mib
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.plan.language import Nodes
from hccl_py.quantities import RATE, SIZE, TIME, Kind, read_quantity
from hccl_py.transport.arguments import (
    items,
    measure,
    shown,
    whole_number,
    whole_numbers,
    wrong,
)
from hccl_py.transport.errors import InvalidArgumentError

_EXPECTED = (
    "expected straggler=RANK:TIME (17:2ms), link=NODE-NODE:RATE (3-4:10Gbit), network=RATE "
    "or burst=SIZE (125KB)"
)

_MOST_RANKS = 1 << 16  # of a node, and nodes


@dataclass(frozen=True)
class Topology:
    """Ranks on nodes.

    Attributes:
        nodes: the ranks of every node.
        machines: the machine of every node; nodes of one machine share its cores and memory, as
            emulated nodes do. Empty: every node has its own.
        late_us: delay of some ranks at each call, by rank.
        links_gbit: rate of links between two nodes in each direction, by pair, lower node first,
            where it is not that of the costs.
        network: the links that messages between ranks cross, instead of the wires of the costs.
    """

    nodes: Nodes
    machines: tuple[int, ...] = ()
    late_us: Mapping[int, float] = field(default_factory=dict)
    links_gbit: Mapping[tuple[int, int], float] = field(default_factory=dict)
    network: Network | None = None

    def __post_init__(self) -> None:
        what = "the ranks of each node, such as ((0, 1), (2, 3))"
        nodes = tuple(whole_numbers("nodes", one, what) for one in items("nodes", self.nodes, what))
        object.__setattr__(self, "nodes", nodes)
        machines = whole_numbers("machines", self.machines, "a whole number for each node")
        object.__setattr__(self, "machines", machines)
        ranks = sorted(rank for node in nodes for rank in node)
        if ranks != list(range(len(ranks))) or not ranks or not all(self.nodes):
            raise InvalidArgumentError(
                f"nodes: expected each rank from 0 on in one node, got {shown(self.nodes)}"
            )
        if self.machines and len(self.machines) != len(self.nodes):
            raise InvalidArgumentError(
                f"machines: expected one for each of {len(self.nodes)} nodes, "
                f"got {len(self.machines)}"
            )
        for name in ("late_us", "links_gbit"):
            if not isinstance(getattr(self, name), Mapping):
                raise wrong(name, "a dict", getattr(self, name))
        for rank, late_us in self.late_us.items():
            measure("late_us", late_us)
            if rank not in range(len(ranks)):
                raise InvalidArgumentError(
                    f"straggler {shown(rank)}: there are ranks 0..{len(ranks) - 1}"
                )
        for pair, gbit in self.links_gbit.items():
            measure("links_gbit", gbit)
            is_pair = isinstance(pair, tuple) and all(one in range(len(nodes)) for one in pair)
            if not is_pair or sorted({*pair}) != list(pair) or len(pair) != 2 or not gbit:
                raise InvalidArgumentError(
                    f"link {shown(pair)}: expected two of the nodes 0..{len(nodes) - 1}, the lower "
                    "first, and a speed above 0"
                )

    @classmethod
    def even(cls, num_nodes: int, ranks_per_node: int) -> Topology:
        """Make nodes of equal size, with ranks in order."""
        sizes = range(1, _MOST_RANKS + 1)
        for name, size in (("num_nodes", num_nodes), ("ranks_per_node", ranks_per_node)):
            whole_number(name, size, f"a whole number of 1 to {_MOST_RANKS}", sizes)
        return cls(nodes_of([ranks_per_node] * num_nodes))

    @classmethod
    def of_network(cls, network: Network | str | Path) -> Topology:
        """Make the ranks of a network, or of a file as `hccl-plan synthesize` reads it."""
        if not isinstance(network, Network):
            network = read_network(Path(network))
        return cls(network.nodes, network=network)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return count_ranks(self.nodes)

    @property
    def is_uniform(self) -> bool:
        """Whether nodes are alike: equal sizes, own machines, no stragglers, no slow links."""
        even = len({len(node) for node in self.nodes}) == 1
        has_own_machines = len(set(self.machines)) == len(self.machines)
        return even and has_own_machines and not (self.late_us or self.links_gbit or self.network)


def changed(text: str, topology: Topology, costs: Costs) -> tuple[Topology, Costs]:
    """Return both, changed by a text such as `straggler=17:2ms,link=3-4:10Gbit,network=25Gbit`.

    Raises:
        InvalidArgumentError: a part of the text is malformed, or names no rank or node.
    """
    late_us, links_gbit = dict(topology.late_us), dict(topology.links_gbit)
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if topology.network is not None and name in ("link", "network", "burst"):
            problem = "the network's file has the links: change them there"
            raise InvalidArgumentError(f"what-if {part!r}: {problem}")
        if name == "straggler" and (found := re.fullmatch(r"(\d+):(.+)", value)):
            late_us[int(found[1])] = 1e6 * _quantity(part, found[2], TIME)
        elif name == "link" and (found := re.fullmatch(r"(\d+)-(\d+):(.+)", value)):
            here, there = sorted((int(found[1]), int(found[2])))
            links_gbit[here, there] = _quantity(part, found[3], RATE) / 1e9
        elif name == "network":
            wire_us = wire_us_per_mib(_quantity(part, value, RATE) / 1e9)
            costs = replace(costs, scale_out=replace(costs.scale_out, wire_us_per_mib=wire_us))
        elif name == "burst":
            burst = _quantity(part, value, SIZE)
            costs = replace(costs, scale_out=replace(costs.scale_out, burst_bytes=burst))
        else:
            raise InvalidArgumentError(f"what-if {part!r}: {_EXPECTED}")
    return replace(topology, late_us=late_us, links_gbit=links_gbit), costs


def _quantity(part: str, text: str, kind: Kind) -> float:
    try:
        return read_quantity(text, kind)
    except ValueError as error:
        raise InvalidArgumentError(f"what-if {part!r}: {error}; {_EXPECTED}") from None
