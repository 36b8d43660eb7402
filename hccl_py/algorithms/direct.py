"""One step: every rank sends directly to the receivers of its data."""

from hccl_py.algorithms.neighbours import others_after
from hccl_py.plan.language import PlanBuilder, data, input, output


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Every rank sends all data to all ranks, and reduces all: for the lowest latency.

    Cost: 1 step, (n-1) x the data sent and reduced by every rank.
    Results are bitwise equal because `recv_reduce` reduces in rank order.
    """
    others = others_after(me, range(n))
    plan.send(others, data[:])
    plan.recv_reduce(others, data[:])
    plan.end_step()


def broadcast(me: int, n: int, plan: PlanBuilder) -> None:
    """The root sends all data to all ranks, as one work request.

    Cost: 1 step, (n-1) x the data sent by the root; shared memory writes it once.
    """
    if me == plan.root:
        plan.send(others_after(me, range(n)), data[:])
    else:
        plan.recv(plan.root, data[:])
    plan.end_step()


def reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Every rank sends all data to the root, which reduces.

    Cost: 1 step, the data sent once by everyone, (n-1) x reduced by the root.
    """
    if me == plan.root:
        plan.recv_reduce(others_after(me, range(n)), data[:])
    else:
        plan.send([plan.root], data[:])
    plan.end_step()


def all_to_all(me: int, n: int, plan: PlanBuilder) -> None:
    """Everyone sends each peer its block.

    Cost: 1 step, (n-1) blocks sent.
    """
    others = others_after(me, range(n))
    for peer in others:
        plan.send([peer], input[peer])
    plan.copy(output[me], input[me])
    for peer in reversed(others):
        plan.recv(peer, output[peer])
    plan.end_step()


def gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Everyone sends its block to the root.

    Cost: 1 step, one block sent by everyone.
    """
    if me == plan.root:
        plan.copy(output[me], input[0])
        for peer in others_after(me, range(n)):
            plan.recv(peer, output[peer])
    else:
        plan.send([plan.root], input[0])
    plan.end_step()


def scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """The root sends everyone its block.

    Cost: 1 step, (n-1) blocks sent by the root.
    """
    if me == plan.root:
        for peer in others_after(me, range(n)):
            plan.send([peer], input[peer])
        plan.copy(output[0], input[me])
    else:
        plan.recv(plan.root, output[0])
    plan.end_step()
