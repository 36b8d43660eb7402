"""What calls need is made once, and the memory for it is bounded."""

import random
import sys
import tracemalloc
from itertools import product
from typing import Any

import pytest
from node_shapes import nodes_by, one_node
from quiet_clock import HANG_S
from tiers import by_night

from hccl_py.calls import plan_cache
from hccl_py.calls.plan_cache import PlanCache
from hccl_py.fingerprint import REDUCING
from hccl_py.memory.element_types import ELEMENT_TYPES, element_type
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.types import Compression, DType, ReduceOp

MOST_CALLS_PER_RANK = 20  # all_to_all, whose plan has two ops for each rank, takes 12
FLOAT, SUM = ELEMENT_TYPES[DType.FLOAT32], int(ReduceOp.SUM)
USUAL = True, Compression.NONE  # even blocks, as they are

Call = tuple[Any, ...]


def test_same_call_is_prepared_once() -> None:
    cache = PlanCache(0, one_node(2))
    first = cache.find("all_reduce", FLOAT, SUM, 10, None, *USUAL)
    assert cache.find("all_reduce", FLOAT, SUM, 10, None, *USUAL) is first


@pytest.mark.parametrize("nodes", [one_node(2), one_node(4), nodes_by([0, 0, 1, 1])])
def test_plans_of_first_calls_are_there_before_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, world_size = PlanCache(0, nodes), sum(map(len, nodes))
    monkeypatch.setattr(plan_cache, "_AHEAD_S", HANG_S)
    cache.prepare_ahead()
    monkeypatch.setattr(cache, "write", None)
    for name, contract in COLLECTIVES.items():
        root = 0 if contract.rooted else None
        for count in (1, 2, 100, 1 << 20, 1 << 24):
            assert cache.find(name, FLOAT, SUM, count * world_size, root, *USUAL)


KINDS = (
    FLOAT,
    ELEMENT_TYPES[DType.UINT8],
    element_type("complex128", 16),
    element_type("float32[3]", 12),
)


@pytest.mark.parametrize("nodes", [one_node(2), nodes_by([0, 0, 1, 1])])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.BF16])
@pytest.mark.parametrize("setting", ["", "ring@64K", "all_to_all=bruck,all_reduce=ring@3000"])
def test_a_call_is_the_same_whichever_size_came_first(
    nodes: Nodes, compression: Compression, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_ALGORITHM", setting)
    chance = random.Random(setting)
    counts = [0, 1, (1 << 21) - 1, 1 << 21, *(chance.randrange(1 << bits) for bits in range(1, 40))]
    chance.shuffle(counts)
    often = PlanCache(0, nodes, compression=compression)
    for (name, contract), kind, count in product(COLLECTIVES.items(), KINDS, counts):
        if name in REDUCING and kind.part_type is None:
            continue
        call = name, kind, SUM, count, 0 if contract.rooted else None, True, compression
        alone = PlanCache(0, nodes, compression=compression)
        expected, found = alone.find(*call), often.find(*call)
        assert _facts(often, found) == _facts(alone, expected)


def _facts(cache: PlanCache, call: Any) -> tuple[Any, ...]:
    """Return the call's count, fingerprint and compression, and its plan's place in the cache."""
    (place,) = [place for place, plan in cache._plans.items() if plan is call.plan]
    return call.count, call.fingerprint, call.compressed, place


@pytest.mark.parametrize("variable", ["HCCL_DEBUG", "HCCL_VERIFY"])
def test_what_is_printed_or_proved_of_a_call_is_so_at_the_call(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    cache = PlanCache(0, one_node(2))
    monkeypatch.setattr(cache, "write", None)
    cache.prepare_ahead()


def test_sizes_that_never_come_back_are_forgotten() -> None:
    cache = PlanCache(0, one_node(2))
    first = cache.find("all_reduce", FLOAT, SUM, 1, None, *USUAL)
    for count in range(2, 5000):
        cache.find("all_reduce", FLOAT, SUM, count, None, *USUAL)
    again = cache.find("all_reduce", FLOAT, SUM, 1, None, *USUAL)
    assert again is not first
    assert again.fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("collective", "rank"),
    [
        *(("all_reduce", 9), ("all_to_all", 9)),
        *by_night("plans", *((one, rank) for one in COLLECTIVES for rank in (0, 9, 4095))),
    ],
)
def test_first_call_among_4096_ranks_is_cheap(collective: str, rank: int) -> None:
    """A rank writes its own plan only: a few calls of Python for each op, and at most 10 MB."""
    nodes = nodes_by([rank // 8 for rank in range(4096)])
    root = 9 if COLLECTIVES[collective].rooted else None
    call = collective, FLOAT, SUM, 1 << 20, root, *USUAL
    tracemalloc.start()
    num_calls = _calls_to_plan(rank, nodes, call)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_calls <= MOST_CALLS_PER_RANK * 4096
    # The engine's own copy: 40 bytes an op and 4 a peer.
    engine_bytes = 3 * 4096 * 44
    assert peak_bytes + engine_bytes <= 10e6


def _calls_to_plan(rank: int, nodes: Nodes, call: Call) -> int:
    """Count the calls of functions in Python, which do not depend on what else the machine does."""
    cache, count = PlanCache(rank, nodes), 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        cache.find(*call)
    finally:
        sys.setprofile(None)
    return count
