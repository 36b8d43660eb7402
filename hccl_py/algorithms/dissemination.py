"""Hearing from everybody in log2 n steps."""

from hccl_py.plan import PlanBuilder, data


def barrier(me: int, n: int, plan: PlanBuilder) -> None:
    """In step k everyone tells the rank 2^k behind it, and listens to the rank 2^k before it.

    After step k everyone has heard, directly or not, from the 2^(k+1) - 1 ranks before it.

    Cost: log2 n steps, one byte each.
    Source: D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, 1988.
    """
    distance = 1
    while distance < n:
        plan.send([(me + distance) % n], data[0])
        plan.recv((me - distance) % n, data[0])
        distance *= 2
