"""Where ranks are, and what is different about some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class Topology:
    """Ranks on nodes.

    Attributes:
        nodes: the ranks of every node.
        machines: of every node, the machine whose cores and memory it shares with others; empty:
            every node has its own. Emulated nodes share one.
        late_us: by rank, how late it comes to each call.
        links_gbit: by pair of nodes, lower first, the speed of the link between these two, in each
            direction, where it is not that of the costs.
    """

    nodes: Nodes
    machines: tuple[int, ...] = ()
    late_us: Mapping[int, float] = field(default_factory=dict)
    links_gbit: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = sorted(rank for node in self.nodes for rank in node)
        if ranks != list(range(len(ranks))) or not ranks or not all(self.nodes):
            raise InvalidArgumentError(
                f"nodes: expected each rank from 0 on in one node, got {self.nodes}"
            )
        if self.machines and len(self.machines) != len(self.nodes):
            raise InvalidArgumentError(
                f"machines: expected one for each of {len(self.nodes)} nodes, "
                f"got {len(self.machines)}"
            )
        for rank in self.late_us:
            if not 0 <= rank < len(ranks):
                raise InvalidArgumentError(f"straggler {rank}: there are ranks 0..{len(ranks) - 1}")
        for here, there in self.links_gbit:
            if not 0 <= here < there < len(self.nodes):
                raise InvalidArgumentError(
                    f"link {here}-{there}: expected two of the nodes 0..{len(self.nodes) - 1}"
                )

    @classmethod
    def even(cls, num_nodes: int, ranks_per_node: int) -> Topology:
        """Make nodes of equal size, ranks counted node by node."""
        nodes = tuple(
            tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node))
            for node in range(num_nodes)
        )
        return cls(nodes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return count_ranks(self.nodes)

    @property
    def is_uniform(self) -> bool:
        """Whether nodes differ in nothing but their number."""
        even = len({len(node) for node in self.nodes}) == 1
        return even and not (self.late_us or self.links_gbit) and not self._shares_machines

    @property
    def _shares_machines(self) -> bool:
        return len(set(self.machines)) < len(self.machines)
