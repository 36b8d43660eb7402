"""Which ranks share a node. Nothing here finds that out; the communicator's rendezvous does."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hccl_py.plan import Nodes
from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class Topology:
    """The nodes of a communicator.

    Attributes:
        nodes: the ranks of every node in order of local rank. Any sizes, any order of ranks.
    """

    nodes: Nodes

    def __post_init__(self) -> None:
        """Refuse what is not a partition of 0..n-1.

        Raises:
            InvalidArgumentError: naming the ranks at fault.
        """
        if not self.nodes or not all(self.nodes):
            raise InvalidArgumentError(f"nodes: expected one or more ranks each, got {self.nodes}")
        ranks = sorted(rank for node in self.nodes for rank in node)
        if ranks != list(range(len(ranks))):
            raise InvalidArgumentError(
                f"nodes: expected each rank of 0..{len(ranks) - 1} once, got {self.nodes}"
            )

    @classmethod
    def from_node_keys(cls, keys: Sequence[Hashable]) -> "Topology":
        """Group ranks by node, nodes in order of first appearance.

        Args:
            keys: entry i says on which node rank i is; equal keys, same node.

        Raises:
            InvalidArgumentError: if there is no rank.
        """
        nodes: dict[Hashable, list[int]] = {}
        for rank, key in enumerate(keys):
            nodes.setdefault(key, []).append(rank)
        return cls(tuple(tuple(node) for node in nodes.values()))

    @classmethod
    def one_node(cls, world_size: int) -> "Topology":
        """Put all ranks on one node."""
        return cls((tuple(range(world_size)),))

    @cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(node) for node in self.nodes)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @cached_property
    def _seats(self) -> dict[int, tuple[int, int]]:
        return {
            rank: (node_index, local_rank)
            for node_index, node in enumerate(self.nodes)
            for local_rank, rank in enumerate(node)
        }

    def node_of(self, rank: int) -> int:
        """Return the index of the node of `rank`."""
        return self._seats[rank][0]

    def local_rank(self, rank: int) -> int:
        """Return the position of `rank` inside its node."""
        return self._seats[rank][1]

    def local_ranks(self, rank: int) -> tuple[int, ...]:
        """Return all ranks of the node of `rank`, itself included."""
        return self.nodes[self.node_of(rank)]
