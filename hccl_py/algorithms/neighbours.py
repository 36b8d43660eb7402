"""Neighbour arithmetic: next ranks, parents, and places in nodes. No ops here."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from hccl_py.plan.language import Nodes

Member = TypeVar("Member")


def count_ranks(nodes: Nodes) -> int:
    """Return the number of ranks of all nodes."""
    return sum(map(len, nodes))


def half_of_ranks(nodes: Nodes) -> int:
    """Return half of the number of ranks, rounded down, but at least 1."""
    return max(1, count_ranks(nodes) // 2)


def are_on_a_node(nodes: Nodes) -> bool:
    """Return whether all ranks are on one node."""
    return len(nodes) == 1


def are_two_on_a_node(nodes: Nodes) -> bool:
    """Return whether there are two ranks, on one node."""
    return [len(node) for node in nodes] == [2]


def others_after(me: Member, team: Sequence[Member]) -> list[Member]:
    """Return the other members of `team`, starting behind me and wrapping round.

    Each rank's first message then goes to a different rank, not all to the first.
    """
    at = team.index(me)
    return [*team[at + 1 :], *team[:at]]


class NodeView(NamedTuple):
    """The nodes as one rank sees them."""

    node: tuple[int, ...]  # the ranks of my node, in order of local rank
    local_rank: int  # my place in it
    mates: list[int]  # the others of my node, starting behind me
    elsewhere: list[tuple[int, ...]]  # the other nodes, starting behind mine

    @classmethod
    def of(cls, me: int, nodes: Nodes) -> "NodeView":
        """Return the view of rank `me`."""
        home = next(node for node in nodes if me in node)
        return cls(home, home.index(me), others_after(me, home), others_after(home, nodes))

    def counterparts(self) -> list[int]:
        """Return the ranks elsewhere whose local rank is mine; every node must have one."""
        return [node[self.local_rank] for node in self.elsewhere]

    def porters(self) -> list[int]:
        """Return the ranks elsewhere whose local rank is mine, modulo the size of their node."""
        return [node[self.local_rank % len(node)] for node in self.elsewhere]

    def places_of_mates(self, below: int | None = None) -> list[tuple[int, int]]:
        """Return the mates, each with its local rank, if that is less than `below`."""
        owners = self.node[:below]
        return [(mate, owners.index(mate)) for mate in self.mates if mate in owners]


def binomial_tree(me: int, n: int, root: int) -> tuple[int | None, list[int]]:
    """Return parent and children of `me` in the binomial tree over all ranks.

    Counted from the root, the parent is I without my lowest set bit; the children are I plus one
    lower bit each, largest subtree first.
    """
    place = (me - root) % n
    lowest = place & -place if place else 1 << (n - 1).bit_length()
    parent = (place - lowest + root) % n if place else None
    bits = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return parent, [(place + bit + root) % n for bit in bits if place + bit < n]


def _in_order_parent(place: int, n: int) -> int | None:
    """Return the parent of a place in the balanced in-order tree over places 1..n.

    Odd places are leaves. With h the lowest set bit, a subtree spans place - h + 1 .. place + h - 1
    and its parent is the multiple of 2h that is no multiple of 4h among place - h and place + h.
    A parent beyond n does not exist; its own parent takes its place. The root, the largest power of
    two, finds only parents beyond n.
    """
    while True:
        lowest = place & -place
        place = (place - lowest) | (lowest << 1)
        if place <= n:
            return place
        if place & (place - 1) == 0:
            return None


def _complementary_orders(n: int) -> tuple[list[int], list[int]]:
    first = list(range(n))
    return first, first[::-1] if n % 2 == 0 else [*first[1:], 0]


def tops_of_complementary_trees(n: int) -> list[int]:
    """Return the root of each tree of `complementary_trees`; n is at least 1."""
    return [order[(1 << (n.bit_length() - 1)) - 1] for order in _complementary_orders(n)]


def complementary_trees(me: int, n: int) -> list[tuple[int | None, list[int]]]:
    """Return parent and children of `me` in two trees: inner ranks of one are leaves of the other.

    The second tree is the first one mirrored (n even: n + 1 - place) or shifted by one (n odd),
    which turns odd places into even ones. With n odd one rank is a leaf of both.
    """
    trees = []
    for parents, children in _families(n):
        trees.append((parents[me], children[me]))
    return trees


@lru_cache(maxsize=4)
def _families(n: int) -> list[tuple[list[int | None], list[list[int]]]]:
    """Return all ranks' parents and children in each tree, cached for calls by rank."""
    families = []
    for order in _complementary_orders(n):
        parents: list[int | None] = [None] * n
        children: list[list[int]] = [[] for _ in range(n)]
        for place, rank in enumerate(order, start=1):
            above = _in_order_parent(place, n)
            if above is not None:
                parents[rank] = order[above - 1]
                children[order[above - 1]].append(rank)
        families.append((parents, children))
    return families
