"""Two levels: most work uses shared memory inside a node, and the wire carries the minimum.

Definitions. The owners of a node are its first m local ranks, where m is the size of the smallest
node; so all nodes have the same number of owners. Counterparts are ranks of equal local rank on
different nodes. Owners with local rank l exchange chunk l with their counterparts only, so every
owner drives its own part of the wire. The engine's tiles make the stages overlap.
"""

from hccl_py.algorithms import mesh
from hccl_py.algorithms.neighbours import NodeView
from hccl_py.plan.language import Chunk, Nodes, PlanBuilder, data, input, output


def owners_per_node(nodes: Nodes) -> int:
    """Return the number of owners of every node."""
    return min(len(node) for node in nodes)


def all_reduce_chunks(nodes: Nodes) -> int:
    """Return the chunk count of `all_reduce`: each owner's share, cut for the counterparts."""
    return owners_per_node(nodes) * _cuts(nodes)


def all_reduce_max_span(nodes: Nodes) -> int:
    """Return the widest op of `all_reduce`: a whole share if a node has several ranks."""
    return _cuts(nodes) if max(map(len, nodes)) > 1 else 1


def _cuts(nodes: Nodes) -> int:
    # Between two counterparts, swapping whole shares costs the traffic of a mesh and one step less.
    return len(nodes) if len(nodes) > 2 else 1


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Owners reduce a share in the node, exchange it with counterparts, and send it to the node.

    Cost: 3 steps with two nodes, 4 with more; 2(k-1)/k of a share over the wire per owner, for k
        nodes.
    """
    view, owners = NodeView.of(me, plan.nodes), owners_per_node(plan.nodes)
    cuts = _cuts(plan.nodes)

    def share(local_rank: int) -> Chunk:
        return data[local_rank * cuts : (local_rank + 1) * cuts]

    owner_mates = view.places_of_mates(below=owners)
    for mate, place in owner_mates:
        plan.send([mate], share(place))
    owns, mine = view.local_rank < owners, share(view.local_rank)
    if owns:
        plan.recv_reduce(view.mates, mine)
    plan.end_step()
    if not owns:
        for _ in range(1 if cuts == 1 else 2):
            plan.end_step()
    elif cuts == 1:
        plan.send(view.counterparts(), mine)
        plan.recv_reduce(view.counterparts(), mine)
        plan.end_step()
    else:
        team = [node[view.local_rank] for node in plan.nodes]
        owned = {peer: data[mine.begin + at] for at, peer in enumerate(team)}
        mesh.all_reduce_among(me, team, owned, plan)
    if owns:
        plan.send(view.mates, mine)
    for mate, place in owner_mates:
        plan.recv(mate, share(place))
    plan.end_step()


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """The root's node gets all data; owners send their chunk to counterparts, which distribute it.

    Cost: 3 steps; the data crosses the wire once to every other node.
    """
    view, owners = NodeView.of(me, plan.nodes), owners_per_node(plan.nodes)
    at_home = plan.root in view.node
    if me == plan.root:
        plan.send(view.mates, data[:])
    elif at_home:
        plan.recv(plan.root, data[:])
    if view.local_rank < owners:
        mine = data[view.local_rank]
        if at_home:
            plan.send(view.counterparts(), mine)
        else:
            home = NodeView.of(plan.root, plan.nodes).node
            plan.recv(home[view.local_rank], mine)
            plan.send(view.mates, mine)
    if not at_home:
        for mate, place in view.places_of_mates(below=owners):
            plan.recv(mate, data[place])


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Owners reduce a chunk inside the node; owners of the root's node add their counterparts'.

    Cost: 3 steps; the data crosses the wire once from every other node.
    """
    view, owners = NodeView.of(me, plan.nodes), owners_per_node(plan.nodes)
    home = NodeView.of(plan.root, plan.nodes).node
    owner_mates = view.places_of_mates(below=owners)
    for mate, place in owner_mates:
        plan.send([mate], data[place])
    if view.local_rank < owners:
        sources = [*view.mates, *view.counterparts()] if me in home else view.mates
        target = plan.root if me in home else home[view.local_rank]
        mine = data[view.local_rank]
        if me != plan.root and sources:
            mine = plan.scratch(0, like=mine)
            plan.copy(mine, data[view.local_rank])
        plan.recv_reduce(sources, mine)
        if me != plan.root:
            plan.send([target], mine)
    if me == plan.root:
        for mate, place in owner_mates:
            plan.recv(mate, data[place])


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Every block crosses the wire once to every other node, where one rank distributes it.

    The block of local rank l goes to local rank l, or l modulo the size of a smaller node.

    Cost: 2 steps; a block is sent once to every other node and handed round once in every node.
    """
    view = NodeView.of(me, plan.nodes)
    plan.send([*view.mates, *view.porters()], input[0])
    plan.copy(output[me], input[0])
    for mate in view.mates:
        plan.recv(mate, output[mate])
    for rank in _blocks_carried_by(view.local_rank, view):
        plan.recv(rank, output[rank])
        plan.send(view.mates, output[rank])
    for mate, place in view.places_of_mates():
        for rank in _blocks_carried_by(place, view):
            plan.recv(mate, output[rank])


def reduce_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """A node reduces each block of another node before the block crosses the wire once.

    Local rank l here, or l modulo the size of this node, reduces the block for local rank l
    elsewhere. Two scratch slots alternate, so that one partial result is reduced while the previous
    one is being sent.

    Cost: 2 steps; a rank sends each mate the blocks that it reduces, and its results over the wire.
    """
    view = NodeView.of(me, plan.nodes)
    for mate, place in view.places_of_mates():
        for rank in _blocks_carried_by(place, view):
            plan.send([mate], input[rank])
        plan.send([mate], input[mate])
    for turn, rank in enumerate(_blocks_carried_by(view.local_rank, view)):
        partial = input[rank]
        if view.mates:
            partial = plan.scratch(turn % 2, like=input[rank])
            plan.copy(partial, input[rank])
            plan.recv_reduce(view.mates, partial)
        plan.send([rank], partial)
    plan.copy(output[0], input[me])
    plan.recv_reduce([*view.mates, *view.porters()], output[0])


def _blocks_carried_by(local_rank: int, view: NodeView) -> list[int]:
    """Return the ranks elsewhere whose blocks pass through `local_rank` of this node."""
    size = len(view.node)
    return [
        rank for node in view.elsewhere for at, rank in enumerate(node) if at % size == local_rank
    ]
