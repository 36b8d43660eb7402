"""Direct exchange between all pairs, as HCCL does inside its box of eight."""

from collections.abc import Mapping, Sequence

from hccl_py.algorithms.neighbours import others_after
from hccl_py.plan.language import Chunk, PlanBuilder, data, input, output


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Every rank reduces the chunk it owns, then sends it to all.

    Cost: 2 steps, 2(n-1)/n of the data sent; shared memory writes the second half once.
    """
    all_reduce_among(me, range(n), {peer: data[peer] for peer in range(n)}, plan)


def all_reduce_among(
    me: int, team: Sequence[int], owned: Mapping[int, Chunk], plan: PlanBuilder
) -> None:
    """Reduce `owned` chunks over the members of a team; `owned[peer]` is reduced by `peer`."""
    others = others_after(me, team)
    for peer in others:
        plan.send([peer], owned[peer])
    plan.recv_reduce(others, owned[me])
    plan.end_step()
    plan.send(others, owned[me])
    for peer in others:
        plan.recv(peer, owned[peer])
    plan.end_step()


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """The root sends each rank one chunk, and every rank sends its chunk to all.

    Cost: 2 steps, about 2 x the data sent by the root, (n-2)/n by the others.
    """
    others = others_after(me, range(n))
    if me == plan.root:
        for peer in others:
            plan.send([peer], data[peer])
        plan.end_step()
        plan.send(others, data[me])
    else:
        plan.recv(plan.root, data[me])
        plan.end_step()
        plan.send([peer for peer in others if peer != plan.root], data[me])
        for peer in others:
            plan.recv(peer, data[peer])
    plan.end_step()


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Every rank reduces the chunk it owns and sends it to the root.

    Cost: 2 steps, the data sent once by everyone; no rank reduces more than its share.
    """
    others = others_after(me, range(n))
    for peer in others:
        plan.send([peer], data[peer])
    mine = data[me]
    if me != plan.root:
        mine = plan.scratch(0, like=data[me])
        plan.copy(mine, data[me])
    plan.recv_reduce(others, mine)
    plan.end_step()
    if me == plan.root:
        for peer in others:
            plan.recv(peer, data[peer])
    else:
        plan.send([plan.root], mine)
    plan.end_step()


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Everyone sends its block to all.

    Cost: 1 step, (n-1) blocks sent; shared memory writes one.
    """
    others = others_after(me, range(n))
    plan.send(others, input[0])
    plan.copy(output[me], input[0])
    for peer in others:
        plan.recv(peer, output[peer])
    plan.end_step()


def reduce_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """Everyone sends each peer the block of that peer, and reduces its own.

    Cost: 1 step, (n-1) blocks sent.
    """
    others = others_after(me, range(n))
    for peer in others:
        plan.send([peer], input[peer])
    plan.copy(output[0], input[me])
    plan.recv_reduce(others, output[0])
    plan.end_step()
