"""One or a few leaders per node: the fewest messages on the wire, for small calls.

A message on the wire costs both kernels microseconds, whatever its size. In `hierarchical` every
owner sends its share; here one leader sends all. A node's leader is its first rank, or the root of
a rooted collective; an `all_to_all` may take several. Data crosses a node's shared memory before
and after.
"""

from collections import Counter
from typing import NamedTuple

from hccl_py.algorithms import doubling, tree
from hccl_py.algorithms.neighbours import NodeView, binomial_tree, count_ranks
from hccl_py.plan.language import Chunk, Nodes, PlanBuilder, data, input, output

Ranks = tuple[int, ...]
"""Of a node."""


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Leaders reduce their node's data, then all leaders' by recursive doubling, and distribute it.

    Cost: 2 steps inside the nodes; between k of them log2 k steps, 2 more if k is no power of two;
        a leader sends the data once per step. A single step in which leaders send to all others
        took 1.2 to 1.3 times as long (6 and 8 ranks on 3 and 4 hosts with two cores in all).
    """
    view = NodeView.of(me, plan.nodes)
    leader = view.node[0]
    if me != leader:
        plan.send([leader], data[:])
        plan.recv(leader, data[:])
        return
    plan.recv_reduce(view.mates, data[:])
    doubling.all_reduce_among(me, [node[0] for node in plan.nodes], plan)
    plan.send(view.mates, data[:])


def barrier(me: int, n: int, plan: PlanBuilder) -> None:
    """Leaders receive from their node, exchange by dissemination, and send to their node.

    Cost: 2 steps inside the nodes and log2 k between k of them, one byte each.
    """
    view = NodeView.of(me, plan.nodes)
    leader = view.node[0]
    if me != leader:
        plan.send([leader], data[0])
        plan.recv(leader, data[0])
        return
    plan.recv_reduce(view.mates, data[0])
    tree.barrier_among(me, [node[0] for node in plan.nodes], plan)
    plan.send(view.mates, data[0])


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """A binomial tree over the leaders; each passes the data on, then distributes it in its node.

    Cost: 1 step inside the nodes and log2 k between k of them; the data sent on the wire at most
        log2 k times by the root, and by another leader once for each of its children.
    """
    view, (leader, parent, children) = NodeView.of(me, plan.nodes), _seat(me, plan)
    if me != leader:
        plan.recv(leader, data[:])
        return
    if parent is not None:
        plan.recv(parent, data[:])
    plan.send(children, data[:])
    plan.send(view.mates, data[:])


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Leaders reduce their node's data and that of the leaders below in a binomial tree.

    Cost: 1 step inside the nodes and log2 k between k of them; the data sent once by every rank.
    """
    view, (leader, parent, children) = NodeView.of(me, plan.nodes), _seat(me, plan)
    if me != leader:
        plan.send([leader], data[:])
        return
    sources, partial = [*view.mates, *children], data[:]
    if parent is not None and sources:
        partial = plan.scratch(0, like=data[:])
        plan.copy(partial, data[:])
    plan.recv_reduce(sources, partial)
    if parent is not None:
        plan.send([parent], partial)


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Ranks exchange blocks in their node; leaders swap their nodes' blocks and distribute them.

    Cost: 3 steps; inside a node every block is sent once, and a leader sends its node's blocks to
        every other leader in one message. Blocks that cross the wire are copied once more.
    """
    view = NodeView.of(me, plan.nodes)
    leader = view.node[0]
    plan.copy(output[me], input[0])
    plan.send(view.mates, input[0])
    for mate in view.mates:
        plan.recv(mate, output[mate])
    ours, *theirs = _scratch(view, output[0], plan)
    if me == leader and view.elsewhere:
        for rank, block in zip(view.node, ours, strict=True):
            plan.copy(block, output[rank])
        plan.send([node[0] for node in view.elsewhere], _all_of(ours))
    for node, blocks in zip(view.elsewhere, theirs, strict=True):
        plan.recv(node[0] if me == leader else leader, _all_of(blocks))
        if me == leader:
            plan.send(view.mates, _all_of(blocks))
        for rank, block in zip(node, blocks, strict=True):
            plan.copy(output[rank], block)


def reduce_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """Leaders reduce their node's data for other nodes and send it; receivers add it to theirs.

    Cost: 3 steps; inside a node everyone but the leader sends all its blocks but one, and a leader
        sends every other leader the blocks of that node in one message. Blocks for other nodes are
        copied once more, a leader's own too.
    """
    view = NodeView.of(me, plan.nodes)
    leader = view.node[0]
    ours, *theirs = _scratch(view, input[0], plan)
    for node, blocks in zip(view.elsewhere, theirs, strict=True):
        for rank, block in zip(node, blocks, strict=True):
            plan.copy(block, input[rank])
        if me == leader:
            plan.recv_reduce(view.mates, _all_of(blocks))
        plan.send([node[0] if me == leader else leader], _all_of(blocks))
    own = {rank: input[rank] for rank in view.node}
    if me == leader and view.elsewhere:
        own = dict(zip(view.node, ours, strict=True))
        for rank, block in own.items():
            plan.copy(block, input[rank])
        plan.recv_reduce([node[0] for node in view.elsewhere], _all_of(ours))
    for mate in view.mates:
        plan.send([mate], own[mate])
    plan.copy(output[0], own[me])
    plan.recv_reduce(view.mates, output[0])


def all_to_all(me: int, n: int, plan: PlanBuilder) -> None:
    """Leaders collect their node's blocks for each other node, swap them, and distribute them.

    A message has at most n blocks, because more blocks mean shorter tiles of a large call. So
    between few nodes a node has several leaders, and between many one leader.

    Cost: 3 steps; between two of N nodes of k ranks k / N messages each way, rounded up, in place
        of k * k; inside a node everyone sends its blocks for another node in one message. Blocks
        that cross the wire are copied up to three times.
    """
    view = NodeView.of(me, plan.nodes)
    swap = _Swap(view.node, view.local_rank, all_to_all_max_span(plan.nodes), plan)
    for node in view.elsewhere:
        _collect(swap, node, _groups(view.node, n // len(node)))
    plan.copy(output[me], input[me])
    for mate in view.mates:
        plan.send([mate], input[mate])
    for mate in view.mates:
        plan.recv(mate, output[mate])
    for node in view.elsewhere:
        _hand_out(swap, node, _groups(node, n // len(view.node)))


def all_to_all_max_span(nodes: Nodes) -> int:
    """Return the most blocks in one message of `all_to_all`."""
    n, sizes = count_ranks(nodes), Counter(map(len, nodes))
    pairs = [(one, to) for one in sizes for to in sizes if one != to or sizes[one] > 1]
    return max((min(one, n // to) * to for one, to in pairs), default=1)


def max_span(nodes: Nodes) -> int:
    """Return the most blocks in one message of `all_gather` and `reduce_scatter`."""
    return max(map(len, nodes)) if len(nodes) > 1 else 1


def _scratch(view: NodeView, like: Chunk, plan: PlanBuilder) -> list[list[Chunk]]:
    """Return scratch for my node's blocks, and two alternating sets for other nodes'."""
    largest = max(map(len, plan.nodes))
    turns = [0, *(1 + turn % 2 for turn in range(len(view.elsewhere)))]
    return [
        [plan.scratch(turn * largest + place, like) for place in range(len(node))]
        for turn, node in zip(turns, (view.node, *view.elsewhere), strict=True)
    ]


class _Swap(NamedTuple):
    """This rank's part in `all_to_all`: its node, its place in it, the most blocks per message."""

    node: Ranks
    place: int
    span: int
    plan: PlanBuilder

    def table(self, number: int, senders: Ranks, receivers: Ranks) -> list[list[Chunk]]:
        """Return one of three tables in scratch: a row of each sender, a block of each receiver."""
        begin, width = number * self.span, len(receivers)
        return [
            [self.plan.scratch(begin + row * width + place, output[0]) for place in range(width)]
            for row in range(len(senders))
        ]


def _groups(ranks: Ranks, size: int) -> list[Ranks]:
    """Cut a node's ranks into groups, at most as many as the other node has ranks."""
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


def _collect(swap: _Swap, node: Ranks, groups: list[Ranks]) -> None:
    """Bring my node's blocks for `node` to the first rank of each group, which sends them there."""
    plan, me = swap.plan, swap.node[swap.place]
    number, senders = next((i, group) for i, group in enumerate(groups) if me in group)
    leads = me == senders[0]
    rows = swap.table(0 if leads else 1, senders if leads else (me,), node)
    for rank, block in zip(node, rows[0], strict=True):
        plan.copy(block, input[rank])
    if not leads:
        plan.send([senders[0]], _all_of(rows[0]))
        return
    for sender, row in zip(senders[1:], rows[1:], strict=True):
        plan.recv(sender, _all_of(row))
    plan.send([node[number]], _all_of(sum(rows, [])))


def _hand_out(swap: _Swap, node: Ranks, groups: list[Ranks]) -> None:
    """Bring the blocks of each group of `node` to their ranks: group i sends them to my i-th rank.

    This rank distributes first, so that no mate waits for it while it waits for others.
    """
    plan, me = swap.plan, swap.node[swap.place]
    if swap.place < len(groups):
        senders = groups[swap.place]
        rows, columns = swap.table(0, senders, swap.node), swap.table(1, swap.node, senders)
        plan.recv(senders[0], _all_of(sum(rows, [])))
        for place, mate in enumerate(swap.node):
            if mate == me:
                continue
            for row, block in zip(rows, columns[place], strict=True):
                plan.copy(block, row[place])
            plan.send([mate], _all_of(columns[place]))
        for sender, row in zip(senders, rows, strict=True):
            plan.copy(output[sender], row[swap.place])
    for leader, senders in zip(swap.node, groups, strict=False):
        if leader != me:
            [mine] = swap.table(2, (me,), senders)
            plan.recv(leader, _all_of(mine))
            for sender, block in zip(senders, mine, strict=True):
                plan.copy(output[sender], block)


def _all_of(blocks: list[Chunk]) -> Chunk:
    first = blocks[0]
    return first._replace(end=first.begin + len(blocks))


def _seat(me: int, plan: PlanBuilder) -> tuple[int, int | None, list[int]]:
    """Return the leader of my node, and its parent and children among the leaders."""
    leaders = [plan.root if plan.root in node else node[0] for node in plan.nodes]
    place = next(place for place, node in enumerate(plan.nodes) if me in node)
    parent, children = binomial_tree(place, len(leaders), leaders.index(plan.root))
    return (
        leaders[place],
        None if parent is None else leaders[parent],
        [leaders[child] for child in children],
    )
