"""log2 n steps, in each of which the distance to the partner doubles: few messages, more bytes."""

from collections.abc import Sequence

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.language import Nodes, PlanBuilder, data, input, output


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Recursive doubling: partners exchange their partial results.

    Let p be the largest power of two up to n. Rank p + i first sends its data to rank i, waits, and
    receives the result. Partners reduce the same two operands in rank order, so bits are equal.

    Cost: log2 p steps, log2 p x the data sent and reduced; 2 steps and the data more if n is not p.
    Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication
        operations in MPICH, 2005.
    """
    all_reduce_among(me, range(n), plan)


def all_reduce_among(me: int, team: Sequence[int], plan: PlanBuilder) -> None:
    """Run `all_reduce` among the members of a team."""
    place, n = team.index(me), len(team)
    p = 1 << (n.bit_length() - 1)
    if place >= p:
        plan.send([team[place - p]], data[:])
        plan.recv(team[place - p], data[:])
        return
    extra = [team[place + p]] if place + p < n else []
    plan.recv_reduce(extra, data[:])
    for partner in (team[place ^ (1 << bit)] for bit in range(p.bit_length() - 1)):
        plan.send([partner], data[:])
        plan.recv_reduce([partner], data[:])
    plan.send(extra, data[:])


def _growth(n: int) -> list[tuple[int, int]]:
    """List, step by step, how many blocks a rank holds and how many it gets."""
    return [(1 << step, min(1 << step, n - (1 << step))) for step in range((n - 1).bit_length())]


def all_gather_max_span(nodes: Nodes) -> int:
    """Return the most blocks in one message of `all_gather`."""
    return max((more for _, more in _growth(count_ranks(nodes))), default=1)


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """A rank that holds k blocks sends all of them to the rank k before it.

    Slot i of scratch is the block of rank me + i, so that all held blocks are one message.

    Cost: log2 n steps, rounded up, one message each; (n-1) blocks sent, each copied twice more.
    Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, Efficient algorithms for
        all-to-all communications in multiport message-passing systems, 1997.
    """
    plan.copy(plan.scratch(0, like=output[0]), input[0])
    for held, more in _growth(n):
        plan.send([(me - held) % n], plan.scratch(0, like=output[0:more]))
        plan.recv((me + held) % n, plan.scratch(held, like=output[0:more]))
    for place in range(n):
        plan.copy(output[(me + place) % n], plan.scratch(place, like=output[0]))


def all_to_all(me: int, n: int, plan: PlanBuilder) -> None:
    """A block for rank me + i moves by the bits of i, in one message with all on the same route.

    Block i is kept in output[me - i], where a block for this rank stays.

    Cost: log2 n steps, rounded up, one message each; about n/2 x log2 n blocks sent, each copied
        twice more.
    Source: as for `all_gather`.
    """
    plan.copy(output[me], input[me])
    for bit in range((n - 1).bit_length()):
        distance = 1 << bit
        moving = [place for place in range(n) if place & distance]
        many = output[0 : len(moving)]
        for slot, place in enumerate(moving):
            waits = output[(me - place) % n] if place % distance else input[(me + place) % n]
            plan.copy(plan.scratch(slot, like=output[0]), waits)
        plan.send([(me + distance) % n], plan.scratch(0, like=many))
        plan.recv((me - distance) % n, plan.scratch(n // 2, like=many))
        for slot, place in enumerate(moving):
            plan.copy(output[(me - place) % n], plan.scratch(n // 2 + slot, like=output[0]))
