"""log2 n steps, in each of which the distance to the partner doubles: few messages, more bytes."""

from hccl_py.plan.language import PlanBuilder, data


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Recursive doubling: partners exchange all that they have reduced so far.

    Let p be the largest power of two up to n. Rank p + i first folds its data into rank i, sits
    out, and gets the result. Partners reduce the same two operands in rank order: the same bits.

    Cost: log2 p steps, log2 p x the data sent and reduced; 2 steps and the data more if n is not p.
    Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication
        operations in MPICH, 2005.
    """
    p = 1 << (n.bit_length() - 1)
    if me >= p:
        plan.send([me - p], data[:])
        plan.recv(me - p, data[:])
        return
    extra = [me + p] if me + p < n else []
    plan.recv_reduce(extra, data[:])
    for partner in (me ^ (1 << bit) for bit in range(p.bit_length() - 1)):
        plan.send([partner], data[:])
        plan.recv_reduce([partner], data[:])
    plan.send(extra, data[:])
