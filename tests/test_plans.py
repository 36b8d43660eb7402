"""What calls need is made once, and the memory for it is bounded."""

from __future__ import annotations

from hccl_py.algorithms.topology import Topology
from hccl_py.plan_cache import PlanCache
from hccl_py.transport.types import DType, ReduceOp

FLOAT, SUM, MAX = int(DType.FLOAT32), int(ReduceOp.SUM), int(ReduceOp.MAX)


def test_same_call_is_prepared_once() -> None:
    cache = PlanCache(0, Topology.one_node(2))
    first = cache["all_reduce", FLOAT, SUM, 10, None]
    assert cache["all_reduce", FLOAT, SUM, 10, None] is first


def test_calls_that_differ_have_fingerprints_that_differ() -> None:
    cache = PlanCache(0, Topology.one_node(2))
    calls = [
        cache["all_reduce", FLOAT, SUM, 10, None],
        cache["all_reduce", FLOAT, MAX, 10, None],
        cache["all_reduce", FLOAT, SUM, 11, None],
        cache["reduce", FLOAT, SUM, 10, 0],
        cache["reduce", FLOAT, SUM, 10, 1],
    ]
    assert len({call.fingerprint for call in calls}) == len(calls)


def test_sizes_that_never_come_back_are_forgotten() -> None:
    cache = PlanCache(0, Topology.one_node(2))
    first = cache["all_reduce", FLOAT, SUM, 1, None]
    for count in range(2, 5000):
        cache["all_reduce", FLOAT, SUM, count, None]
    again = cache["all_reduce", FLOAT, SUM, 1, None]
    assert again is not first
    assert again.fingerprint == first.fingerprint
