"""Ranks that are alike: groups whose plans are those of group 0 with other ranks as peers.

A *move* maps group k to group k + s (modulo their number) or to group k XOR s, and a rank to the
rank at the same index in its new group. If every rank's plan is the moved plan of a rank of group
0, only the plans of group 0 are written. Groups are nodes, or single ranks if nodes differ in size.

If nodes are alike in everything else too, every node does the same at the same times, so simulating
node 0 suffices: for a message from node 0 to node k, the same message arrives at node 0 from
another node.

Plans are compared group by group: all groups if there are few messages, else some, and of very long
plans the first and the last one of a group.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hccl_py.lab._lab import Move
from hccl_py.lab.simulation.plan_source import PlanSource
from hccl_py.plan.language import RECV_REDUCE, Nodes, Plan

_MOST_COMPARED = 300_000  # messages, and copies
_MOST_MOVED = 4_000_000  # ranks, for all compared groups
_FEWEST_GROUPS = 2


_TARGETS: dict[Move, Callable[[int, int, int], int]] = {
    Move.ROTATION: lambda group, zero, number: (group - zero) % number,
    Move.EXCLUSIVE_OR: lambda group, zero, number: group ^ zero,
}
"""The new index of a group if group `zero` becomes group 0."""


@dataclass(frozen=True)
class Fold:
    """The kept plans, and the simulated ranks.

    Attributes:
        groups: ranks of each group.
        move: how plans of other groups follow from those of the first one; NONE: all are kept.
        simulated: the simulated ranks; each also represents those of its index in other groups.
        plans: the plans that are written already.
    """

    groups: Nodes
    move: Move
    simulated: tuple[int, ...]
    plans: dict[int, Plan] = field(default_factory=dict)

    @property
    def written(self) -> Sequence[int]:
        """The ranks whose plans are kept."""
        return range(len(self.simulated)) if self.move is Move.NONE else self.groups[0]


def whole(nodes: Nodes) -> Fold:
    """Return a fold that keeps all plans and simulates all ranks."""
    ranks = tuple(rank for node in nodes for rank in node)
    return Fold((), Move.NONE, ranks)


def fold_of(source: PlanSource, nodes: Nodes, is_uniform: bool) -> Fold:
    """Find out which ranks are alike.

    Args:
        source: the algorithm.
        nodes: the ranks.
        is_uniform: whether nodes are alike in everything except, perhaps, their plans.
    """
    everybody = whole(nodes)
    is_even = len(set(map(len, nodes))) == 1
    groups = nodes if is_even else tuple((rank,) for rank in range(len(everybody.simulated)))
    if len(groups) == 1:
        return everybody
    first = [source.write(rank) for rank in groups[0]]
    for move in (Move.ROTATION, Move.EXCLUSIVE_OR):
        if move is Move.EXCLUSIVE_OR and len(groups) & (len(groups) - 1):
            continue
        if _is_alike(source, groups, move, first):
            plans = dict(zip(groups[0], first, strict=True))
            fold = replace(everybody, groups=groups, move=move, plans=plans)
            return replace(fold, simulated=groups[0]) if is_uniform else fold
    return everybody


def _is_alike(source: PlanSource, groups: Nodes, move: Move, first: Sequence[Plan]) -> bool:
    messages = sum(max(1, len(op.peers)) for plan in first for op in plan.ops)
    target, number = _TARGETS[move], len(groups)
    for zero in _compared(number, messages, number * len(first)):
        moved = [0] * (number * len(first))
        for index, group in enumerate(groups):
            for rank, there in zip(group, groups[target(index, zero, number)], strict=True):
                moved[rank] = there
        pairs = list(zip(groups[zero], first, strict=True))
        for rank, expected in pairs if messages <= _MOST_COMPARED else (pairs[0], pairs[-1]):
            if not _is_moved(source.write(rank), expected, moved):
                return False
    return True


def _compared(num_groups: int, messages_of_group: int, num_ranks: int) -> list[int]:
    affordable = min(_MOST_COMPARED // max(1, messages_of_group), _MOST_MOVED // num_ranks)
    many = max(_FEWEST_GROUPS, affordable)
    if many >= num_groups - 1:
        return list(range(1, num_groups))
    spread = {1 + at * (num_groups - 2) // (many - 1) for at in range(many)}
    return sorted(spread)


def _is_moved(plan: Plan, expected: Plan, moved: Sequence[int]) -> bool:
    if len(plan.ops) != len(expected.ops):
        return False
    for mine, theirs in zip(plan.ops, expected.ops, strict=True):
        peers = tuple([moved[peer] for peer in mine.peers])
        if mine.kind is RECV_REDUCE:  # its peers are in rank order, which the move changes
            peers = tuple(sorted(peers))
        if mine.kind is not theirs.kind or peers != theirs.peers:
            return False
        for one, other in ((mine.src, theirs.src), (mine.dst, theirs.dst)):
            if one and other and one.end - one.begin != other.end - other.begin:
                return False
    return True
