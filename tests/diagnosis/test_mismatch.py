"""One rank calls something else: all ranks raise the same error, which names both calls.

Every deviation from every call, by every rank, on several layouts: far more than a run of all tests
can do, so each run takes a share of them. `HCCL_TEST_ROUNDS=50` takes 2,000, and `all` takes all of
them (half an hour).
"""

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from quiet_clock import HANG_S
from thread_ranks import ThreadRanks

from hccl_py import Communicator, MismatchError, ReduceOp

Array = np.ndarray[Any, Any]

LARGE = 100_003  # elements: several tiles on every algorithm
LAYOUTS = ("aa", "ab", "aaa", "aaaa", "aabb", "abc")
_MOST_LATER_CALLS = 3


@dataclass(frozen=True)
class Spec:
    """A call, and how messages that name it begin; block 0 is longer than others by `uneven`."""

    collective: str
    text: str
    dtype: str = "float32"
    count: int = 30
    root: int = 0
    op: ReduceOp = ReduceOp.SUM
    uneven: int = 0


CALLS = [
    Spec("all_reduce", "all_reduce(sum, float32[30])"),
    Spec("all_reduce", "all_reduce(max, float32[30])", op=ReduceOp.MAX),
    Spec("all_reduce", "all_reduce(sum, int32[30])", "int32"),
    Spec("all_reduce", "all_reduce(sum, complex64[15])", "complex64", 15),
    Spec("all_reduce", "all_reduce(sum, float32[31])", count=31),
    Spec("all_reduce", "all_reduce(sum, float32[0])", count=0),
    Spec("all_reduce", f"all_reduce(sum, float32[{LARGE}])", count=LARGE),
    Spec("all_reduce", f"all_reduce(sum, float32[{LARGE + 1}])", count=LARGE + 1),
    Spec("broadcast", "broadcast(src=0, float32[30])"),
    Spec("broadcast", "broadcast(src=1, float32[30])", root=1),
    Spec("broadcast", "broadcast(src=0, int32[30])", "int32"),
    Spec("broadcast", "broadcast(src=0, float32[0])", count=0),
    Spec("broadcast", f"broadcast(src=0, float32[{LARGE}])", count=LARGE),
    Spec("reduce", "reduce(dst=0, sum, float32[30])"),
    Spec("reduce", "reduce(dst=1, sum, float32[30])", root=1),
    Spec("reduce", f"reduce(dst=0, max, float32[{LARGE}])", count=LARGE, op=ReduceOp.MAX),
    Spec("all_gather", "all_gather(float32["),
    Spec("all_gather", "all_gather(int32[", "int32"),
    Spec("all_gather", "all_gather(float32[0 in all])", count=0),
    Spec("all_gather", "all_gather(float32[", uneven=3),
    Spec("all_gather", "all_gather(float32[", count=LARGE),
    Spec("reduce_scatter", "reduce_scatter(sum, float32["),
    Spec("reduce_scatter", "reduce_scatter(sum, float32[", count=31),
    Spec("reduce_scatter", "reduce_scatter(min, float32[", count=LARGE, op=ReduceOp.MIN),
    Spec("all_to_all", "all_to_all(float32)"),
    Spec("all_to_all", "all_to_all(int32)", "int32"),
    Spec("all_to_all", "all_to_all(float64)", "float64", LARGE),
    Spec("gather", "gather(dst=0, float32)"),
    Spec("gather", "gather(dst=1, float32)", root=1),
    Spec("scatter", "scatter(src=0, float32)"),
    Spec("scatter", "scatter(src=1, float32)", root=1),
    Spec("barrier", "barrier()"),
]
# In these a rank can have all that it needs without the rank that calls something else.
_ONE_SIDED = {"broadcast", "reduce", "gather", "scatter"}


def prepared(spec: Spec, rank: int, n: int) -> Callable[[Communicator], Any]:
    """Make the buffers of a rank; return how it makes the call."""

    def numbers(count: int = spec.count) -> Array:
        return np.arange(1, count + 1).astype(spec.dtype)

    blocks = [numbers(spec.count + spec.uneven * (r == 0)) for r in range(n)]
    inputs, data = [np.full_like(block, 77) for block in blocks], numbers()
    at_root = rank == spec.root
    calls: dict[str, Callable[[Communicator], Any]] = {
        "all_reduce": lambda c: c.all_reduce(data, spec.op),
        "broadcast": lambda c: c.broadcast(data, spec.root),
        "reduce": lambda c: c.reduce(data, spec.root, spec.op),
        "all_gather": lambda c: c.all_gather(blocks, inputs[rank]),
        "reduce_scatter": lambda c: c.reduce_scatter(data, inputs, spec.op),
        "all_to_all": lambda c: c.all_to_all(blocks, inputs),
        "gather": lambda c: c.gather(blocks if at_root else None, data, spec.root),
        "scatter": lambda c: c.scatter(data, inputs if at_root else None, spec.root),
        "barrier": lambda c: c.barrier(),
    }
    return calls[spec.collective]


@dataclass
class Seen:
    """What one rank saw: the error, and whether the call itself raised it."""

    error: MismatchError
    in_the_call: bool


def _deviate(layout: str, usual: Spec, other: Spec, deviant: int) -> list[Seen]:
    """All make the usual call, but one; then calls in which all talk to all, until they raise."""
    n = len(layout)
    all_are_connected = threading.Barrier(n, timeout=HANG_S)

    def call(comm: Communicator) -> Seen:
        make_the_call = prepared(other if comm.rank == deviant else usual, comm.rank, n)
        comm.barrier()
        all_are_connected.wait()  # else the error may come while a rank is in its barrier
        try:
            make_the_call(comm)
        except MismatchError as error:
            return Seen(error, True)
        for _ in range(_MOST_LATER_CALLS):
            try:
                comm.all_reduce(np.ones(1))
            except MismatchError as error:
                return Seen(error, False)
        raise AssertionError(f"rank {comm.rank} noticed nothing")

    with ThreadRanks(layout) as ranks:
        return ranks.run(call)


def _cases() -> list[tuple[str, int, int, int]]:
    every = [
        (layout, usual, other, deviant)
        for layout in LAYOUTS
        for usual in range(len(CALLS))
        for other in range(len(CALLS))
        for deviant in range(len(layout))
        if usual != other
    ]
    rounds = os.environ.get("HCCL_TEST_ROUNDS", "2")
    if rounds == "all":
        return every
    num_cases = 20 * int(rounds)
    share = random.Random(20).sample(every, num_cases)
    # What differs in one attribute only is what is easily missed.
    alike = [one for one in every if CALLS[one[1]].collective == CALLS[one[2]].collective]
    return share + random.Random(21).sample(alike, min(num_cases, len(alike)))


@pytest.mark.parametrize(("layout", "usual", "other", "deviant"), _cases())
def test_other_call_of_one_rank(layout: str, usual: int, other: int, deviant: int) -> None:
    seen = _deviate(layout, CALLS[usual], CALLS[other], deviant)
    texts = {str(one.error) for one in seen}
    assert len(texts) == 1, texts
    (text,) = texts
    for spec in (CALLS[usual], CALLS[other]):
        assert spec.text in text
    assert "as number 2" in text
    assert f"rank {deviant} called {CALLS[other].text}" in text
    for rank, one in enumerate(seen):
        spec = CALLS[other if rank == deviant else usual]
        if not one.in_the_call:
            assert spec.collective in _ONE_SIDED, f"rank {rank} did not raise in the call"
