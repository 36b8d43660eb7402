"""Chunks travel round a ring of ranks: every rank exchanges with two neighbours only."""

from hccl_py.plan.language import PlanBuilder, data, input, output


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """A chunk travels round once to collect contributions, and again to distribute the result.

    Chunk c starts at rank c + 1 and is complete at rank c.

    Cost: 2(n-1) steps, 2(n-1)/n of the data sent: least traffic, most steps.
    """
    before, behind = (me - 1) % n, (me + 1) % n
    for step in range(1, n):
        plan.send([behind], data[(me - step) % n])
        plan.recv_reduce([before], data[(me - step - 1) % n])
    for step in range(n - 1):
        plan.send([behind], data[(me - step) % n])
        plan.recv(before, data[(me - step - 1) % n])


def all_gather(me: int, n: int, plan: PlanBuilder) -> None:
    """Every block travels round once.

    Cost: n-1 steps, (n-1) blocks sent.
    """
    before, behind = (me - 1) % n, (me + 1) % n
    plan.copy(output[me], input[0])
    for step in range(n - 1):
        plan.send([behind], output[(me - step) % n])
        plan.recv(before, output[(me - step - 1) % n])


def reduce_scatter(me: int, n: int, plan: PlanBuilder) -> None:
    """The partial result of block b travels from rank b + 1 round to rank b.

    Two scratch slots alternate, so that a rank reduces one partial result while it sends the
    previous one.

    Cost: n-1 steps, (n-1) blocks sent.
    """
    before, behind = (me - 1) % n, (me + 1) % n
    for step in range(1, n):
        block = (me - step) % n
        partial = input[block]
        if step > 1:
            partial = plan.scratch(step % 2, like=input[block])
            plan.copy(partial, input[block])
            plan.recv_reduce([before], partial)
        plan.send([behind], partial)
    plan.copy(output[0], input[me])
    plan.recv_reduce([before] if n > 1 else [], output[0])
