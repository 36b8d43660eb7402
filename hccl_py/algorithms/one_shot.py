"""One step: everybody sends everything. For messages so small that only latency counts."""

from hccl_py.algorithms.neighbours import others_after
from hccl_py.plan import PlanBuilder, data


def all_reduce(me: int, n: int, plan: PlanBuilder) -> None:
    """Everyone sends all to all, everyone reduces all.

    Cost: 1 step, (n-1) x the data sent and reduced by every rank.
    Same bits everywhere because `recv_reduce` reduces in rank order.
    """
    others = others_after(me, range(n))
    plan.send(others, data[:])
    plan.recv_reduce(others, data[:])
