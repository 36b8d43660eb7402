"""Recursive halving, then doubling: least traffic in log2 n steps."""

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.language import Chunk, Nodes, PlanBuilder, data


def _power_of_two_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def chunks(nodes: Nodes) -> int:
    """Return the chunk count: one chunk for each rank that takes part in the halving."""
    return _power_of_two_below(count_ranks(nodes))


def max_span(nodes: Nodes) -> int:
    """Return the widest op: all chunks where ranks sit out, else the first half."""
    n = count_ranks(nodes)
    return n // 2 if n == chunks(nodes) > 1 else chunks(nodes)


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Partners exchange halves of what they still own until everyone owns one chunk, and back.

    Let p be the largest power of two up to n. Rank p + i first folds its data into rank i, sits
    out, and gets the result.

    Cost: 2 log2 p steps, 2(p-1)/p of the data sent; 2 steps and the whole data more if n is not p.
    Source: R. Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    p = _power_of_two_below(n)
    if me >= p:
        plan.send([me - p], data[:])
        plan.recv(me - p, data[:])
        return
    extra = [me + p] if me + p < n else []
    plan.recv_reduce(extra, data[:])

    # With `length` chunks left, I own those whose number differs from mine in the low bits only.
    lengths = [p >> step for step in range(1, p.bit_length())]
    for length in lengths:
        partner = me ^ length
        plan.send([partner], _owned(partner, length))
        plan.recv_reduce([partner], _owned(me, length))
    for length in reversed(lengths):
        partner = me ^ length
        plan.send([partner], _owned(me, length))
        plan.recv(partner, _owned(partner, length))

    plan.send(extra, data[:])


def _owned(rank: int, length: int) -> Chunk:
    begin = rank - rank % length
    return data[begin : begin + length]
