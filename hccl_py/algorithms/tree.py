"""log2 n steps, for few bytes or slow starts: trees, and dissemination."""

from collections.abc import Sequence

from hccl_py.algorithms.neighbours import (
    binomial_tree,
    complementary_trees,
    others_after,
    tops_of_complementary_trees,
)
from hccl_py.plan.language import PlanBuilder, data


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Two complementary binary trees each carry half the data up to their root and down again.

    An inner rank of one tree is a leaf of the other, so no rank's links are idle.

    Cost: about 4 log2 n steps, at most 3 x the data sent by a rank.
    Source: P. Sanders, J. Speck, J. L. Traeff, Two-tree algorithms for full bandwidth broadcast,
        reduction and scan, 2009.
    """
    trees = complementary_trees(me, n)
    for half, (parent, children) in enumerate(trees):
        plan.recv_reduce(children, data[half])
        if parent is not None:
            plan.send([parent], data[half])
    for half, (parent, children) in enumerate(trees):
        if parent is not None:
            plan.recv(parent, data[half])
        plan.send(children, data[half])


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """Binomial tree: in every step each rank that has the data passes it on.

    Cost: log2 n steps, at most log2 n x the data sent, by the root.
    """
    parent, children = binomial_tree(me, n, plan.root)
    if parent is not None:
        plan.recv(parent, data[:])
    plan.send(children, data[:])


def broadcast_by_two_trees(me: int, n: int, plan: PlanBuilder) -> None:
    """Two complementary binary trees over all but the root each pass down half the data.

    An inner rank of one tree is a leaf of the other, and first receives the half that it passes on.
    A send completes in the background, so a rank passes on one tile while it receives the next.

    Cost: about 1 + log2 n steps, the data sent at most once by everyone, the root too.
    Source: as for `all_reduce`.
    """
    if n == 1:
        return
    others = others_after(plan.root, range(n))
    if me == plan.root:
        for half, top in enumerate(tops_of_complementary_trees(n - 1)):
            plan.send([others[top]], data[half])
        return
    seats = enumerate(complementary_trees(others.index(me), n - 1))
    for half, (parent, children) in sorted(seats, key=lambda seat: not seat[1][1]):
        plan.recv(plan.root if parent is None else others[parent], data[half])
        plan.send([others[child] for child in children], data[half])


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Binomial tree towards the root; partial results are in scratch, as only the root's data
    changes.

    Cost: log2 n steps, the data sent once by everyone, at most log2 n x reduced by one rank.
    """
    parent, children = binomial_tree(me, n, plan.root)
    partial = data[:]
    if parent is not None and children:
        partial = plan.scratch(0, like=data[:])
        plan.copy(partial, data[:])
    plan.recv_reduce(children, partial)
    if parent is not None:
        plan.send([parent], partial)


def barrier(me: int, n: int, plan: PlanBuilder) -> None:
    """In step k every rank sends to the rank 2^k behind it and receives from the one 2^k before.

    After step k every rank has received, directly or not, from the 2^(k+1) - 1 ranks before it.

    Cost: log2 n steps, one byte each.
    Source: D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, 1988.
    """
    barrier_among(me, range(n), plan)


def barrier_among(me: int, team: Sequence[int], plan: PlanBuilder) -> None:
    """Run `barrier` among the members of a team."""
    place, distance = team.index(me), 1
    while distance < len(team):
        plan.send([team[(place + distance) % len(team)]], data[0])
        plan.recv(team[place - distance], data[0])
        distance *= 2
