"""Alike ranks: one node stands for all where the plans of every node are those of the first, moved.

A *move* takes node k to node k + s (modulo their number) or to node k XOR s, and keeps local ranks.
If every rank's plan is the moved plan of the rank with its local rank on node 0, then what happens
on a node is what happens on node 0, at the same times. So it suffices to simulate node 0: what it
sends to node k arrives where the same message of another node arrives at node 0.

Plans are compared node by node: all of them in a small world, those of a few nodes in a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hccl_py.plan.language import RECV_REDUCE, Nodes, Plan
from hccl_py.simulation.candidate import Candidate

_MOST_COMPARED = 300_000  # messages
_FEWEST_NODES = 3

Move = Callable[[int, int], int]
"""Takes a node's number and that of the node which becomes node 0 to where the first one goes."""


class Fold:
    """Ranks that are simulated, and which of their messages stand for which others."""

    def __init__(self, nodes: Nodes, move: Move | None) -> None:
        """Fold all nodes onto node 0 by `move`; None: nothing is folded."""
        self.ranks = [rank for node in nodes for rank in node] if move is None else list(nodes[0])
        self.plans: dict[int, Plan] = {}  # of ranks that are simulated, as far as they are written
        self._nodes = nodes
        self._move = move
        self._place = {
            rank: (index, local)
            for index, node in enumerate(nodes)
            for local, rank in enumerate(node)
        }

    @property
    def is_whole(self) -> bool:
        """Whether every rank is simulated."""
        return self._move is None

    def node(self, rank: int) -> int:
        """Return the node of a rank."""
        return self._place[rank][0]

    def local_rank(self, rank: int) -> int:
        """Return the place of a rank in its node."""
        return self._place[rank][1]

    def lane(self, source: int, target: int) -> tuple[int, int]:
        """Return the lane that stands for that from `source` to `target`."""
        if self._move is None:
            return source, target
        zero = self._place[target][0]
        return self.moved(source, zero), self.moved(target, zero)

    def moved(self, rank: int, zero: int) -> int:
        """Return where a rank goes when node `zero` becomes node 0."""
        assert self._move is not None
        node, local = self._place[rank]
        return self._nodes[self._move(node, zero)][local]


def fold_of(candidate: Candidate, nodes: Nodes) -> Fold:
    """Find out whether one node can stand for all; the topology must be uniform."""
    num_nodes = len(nodes)
    if num_nodes > 1:
        moves: list[Move] = [lambda node, zero: (node - zero) % num_nodes]
        if num_nodes & (num_nodes - 1) == 0:
            moves.append(lambda node, zero: node ^ zero)
        first = [candidate.write(rank) for rank in nodes[0]]
        for move in moves:
            fold = Fold(nodes, move)
            if _is_alike(candidate, fold, nodes, first):
                fold.plans = dict(zip(nodes[0], first, strict=True))
                return fold
    return Fold(nodes, None)


def _is_alike(candidate: Candidate, fold: Fold, nodes: Nodes, first: Sequence[Plan]) -> bool:
    messages = sum(len(op.peers) for plan in first for op in plan.ops)
    for zero in _compared(len(nodes), messages):
        moved = [fold.moved(rank, zero) for rank in range(sum(map(len, nodes)))]
        for rank, expected in zip(nodes[zero], first, strict=True):
            if not _is_moved(candidate.write(rank), expected, moved):
                return False
    return True


def _compared(num_nodes: int, messages_of_node: int) -> list[int]:
    many = max(_FEWEST_NODES, _MOST_COMPARED // max(1, messages_of_node))
    if many >= num_nodes - 1:
        return list(range(1, num_nodes))
    spread = {1 + at * (num_nodes - 2) // (many - 1) for at in range(many)}
    return sorted(spread)


def _is_moved(plan: Plan, expected: Plan, moved: Sequence[int]) -> bool:
    if len(plan.ops) != len(expected.ops):
        return False
    for mine, theirs in zip(plan.ops, expected.ops, strict=True):
        peers = tuple([moved[peer] for peer in mine.peers])
        if mine.kind is RECV_REDUCE:  # in rank order, which moves
            peers = tuple(sorted(peers))
        if mine.kind is not theirs.kind or peers != theirs.peers:
            return False
        for one, other in ((mine.src, theirs.src), (mine.dst, theirs.dst)):
            if one and other and one.end - one.begin != other.end - other.begin:
                return False
    return True
