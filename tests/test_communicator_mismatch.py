"""Ranks that make different calls are told both, and all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from hccl_py import Communicator, MismatchError, ReduceOp


def _float32(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


MISMATCHES: dict[str, tuple[Callable[[Communicator], Any], str, Callable[[Communicator], Any], str]]
MISMATCHES = {
    "collective": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.broadcast(_float32(9), 0),
        "broadcast(src=0, float32[9]) as number 1",
    ),
    "dtype": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.all_reduce(np.ones(9, np.int32)),
        "all_reduce(sum, int32[9]) as number 1",
    ),
    "op": (
        lambda c: c.all_reduce(_float32(9)),
        "all_reduce(sum, float32[9]) number 1",
        lambda c: c.all_reduce(_float32(9), ReduceOp.MAX),
        "all_reduce(max, float32[9]) as number 1",
    ),
    "count": (
        lambda c: c.all_reduce(_float32(300_000)),
        "all_reduce(sum, float32[300000]) number 1",
        lambda c: c.all_reduce(_float32(300_001)),
        "all_reduce(sum, float32[300001]) as number 1",
    ),
    "large count": (
        lambda c: c.all_reduce(np.ones(4_000_000, np.uint8)),
        "all_reduce(sum, uint8[4000000]); all ranks must",
        lambda c: c.all_reduce(np.ones(4_000_001, np.uint8)),
        "all_reduce(sum, uint8[4000001]) as number 1",
    ),
    "block": (
        lambda c: c.all_gather(_float32(4), _float32(2)),
        "all_gather(float32[4 in all]) number 1",
        lambda c: c.all_gather(_float32(6), _float32(3)),
        "all_gather(float32[6 in all]) as number 1",
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_different_calls_are_named_the_same_on_both_sides(nodes: str, what: str) -> None:
    one, one_text, other, other_text = MISMATCHES[what]
    with ThreadRanks(nodes) as ranks:
        errors = ranks.failures(lambda comm: (other if comm.rank else one)(comm))
        for error in errors:
            assert isinstance(error, MismatchError), error
            assert one_text in str(error)
            # Of two groups as large as each other, the one without rank 0 is to blame.
            assert f"rank 1 called {other_text}, rank 0 called " in str(error)
            assert (error.rank, error.cause, error.sequence) == (1, "mismatch", 1)
        assert str(errors[0]) == str(errors[1])
        later = ranks.failures(lambda comm: comm.barrier())
        assert [str(error) for error in later] == [str(error) for error in errors]


def test_different_roots_are_named() -> None:
    with ThreadRanks("aaa") as ranks:
        # Long enough that every rank has a part in it: a short one is sent, and done.
        for error in ranks.failures(lambda c: c.reduce(np.ones(9000), 0 if c.rank else 1)):
            assert isinstance(error, MismatchError), error
            assert "reduce(dst=0, sum, float64[9000])" in str(error)
            assert "reduce(dst=1, sum, float64[9000])" in str(error)


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_all_to_all_of_different_lengths_is_a_mismatch(nodes: str) -> None:
    def exchange(comm: Communicator) -> None:
        mine = _float32(3)
        theirs = _float32(5 if comm.rank else 4)
        blocks = [mine, theirs] if comm.rank == 0 else [theirs, mine]
        comm.all_to_all([one.copy() for one in blocks], blocks)

    with ThreadRanks(nodes) as ranks:
        for error in ranks.failures(exchange):
            assert isinstance(error, MismatchError), error
            assert "all_to_all" in str(error)
