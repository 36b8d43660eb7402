"""Broadcasts by trees that share no link, as many as cuts allow (J. Edmonds, 1973).

For networks of ranks alone, where a message crosses one link. A link counts as often as a chunk may
cross it in a time. Each tree grows from the root by a link at a time. A link may be taken if the
others still have room for the trees that are left (L. Lovász, On two minimax theorems in graphs,
1976). That need only be known of sets with the link's head: a maximum flow to it decides.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction

from hccl_py.lab.synthesis.bound import simulated_time
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.order import plans_of
from hccl_py.lab.synthesis.packing import Tree
from hccl_py.plan.language import Plan

_FINALISTS = 4

_Room = list[dict[int, int]]
"""By tail and head of a link, how many chunks may still cross it."""


def disjoint_candidates(
    name: str, network: Network, roots: Sequence[int | None], nums: Iterable[int]
) -> list[dict[int | None, Sequence[Plan]]]:
    """Return plans of broadcasts by root, not proved: those that are fastest for the first root.

    Args:
        name: of the plans.
        network: of ranks alone.
        roots: of the broadcasts.
        nums: the numbers of chunks to try.
    """

    def plans(root: int | None, num: int, widest: bool) -> Sequence[Plan]:
        assert root is not None
        trees = [Tree(root, (), one) for one in disjoint_trees(network, root, num, widest)]
        return plans_of("broadcast", name, network, trees, root)

    tried = {
        (num, widest): simulated_time(plans(roots[0], num, widest), network)
        for num in nums
        for widest in (False, True)
    }
    best = sorted(tried, key=lambda one: tried[one])[:_FINALISTS]
    return [{root: plans(root, *one) for root in roots} for one in best]


def disjoint_trees(
    network: Network, root: int, num: int, widest: bool = False
) -> list[tuple[int, ...]]:
    """Return trees from a root: by rank, its parent or itself.

    The busiest link is busy for the shortest time that any `num` trees allow. `widest`: a rank's
    links of the highest rate are taken first, else those to the ranks with the lowest numbers.
    """
    rates = network.kbit_per_s
    times = sorted({Fraction(many, rate) for rate in rates.values() for many in range(1, num + 1)})
    order = sorted(rates, key=lambda arc: (arc[0], -rates[arc] * widest, arc[1]))

    def room_in(time: Fraction) -> _Room:
        room: _Room = [{} for _ in range(network.world_size)]
        for tail, head in order:
            room[tail][head] = int(rates[tail, head] * time)
        return room

    def suffices(time: Fraction) -> bool:
        room = room_in(time)
        return all(_flows(room, root, rank, num) for rank in range(network.world_size))

    room = room_in(times[bisect_left(times, True, key=suffices)])
    return [_grown(room, root, left) for left in reversed(range(num))]


def _grown(room: _Room, root: int, left: int) -> tuple[int, ...]:
    """Return a tree, whose links lose room; `left`: how many trees need the rest."""
    parents, refused = {root: root}, set[tuple[int, int]]()
    while len(parents) < len(room):
        # The nearest to the root first, for flat trees.
        for tail, head in [(rank, head) for rank in parents for head in room[rank]]:
            if head in parents or not room[tail][head] or (tail, head) in refused:
                continue
            room[tail][head] -= 1
            if _flows(room, root, head, left):
                parents[head] = tail
                break
            room[tail][head] += 1
            refused.add((tail, head))  # no link that this tree takes later changes that
    return tuple(parents[rank] for rank in range(len(room)))


def _flows(room: _Room, root: int, target: int, wanted: int) -> bool:
    """Return whether so many chunks can flow from the root to a rank (L. R. Ford; J. Edmonds)."""
    left = [dict(heads) for heads in room]
    while wanted > 0 and root != target:
        came = {root: root}
        for here in (queue := [root]):
            for head, many in left[here].items():
                if many and head not in came:
                    came[head] = here
                    queue.append(head)
            if target in came:
                break
        else:
            return False
        way = [target]
        while way[-1] != root:
            way.append(came[way[-1]])
        steps = list(zip(way[1:], way, strict=False))
        many = min(wanted, *(left[tail][head] for tail, head in steps))
        wanted -= many
        for tail, head in steps:
            left[tail][head] -= many
            left[head][tail] = left[head].get(tail, 0) + many
    return True
