"""Ranks that make the calls of two groups in different orders."""

import numpy as np
import pytest
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import CollectiveTimeoutError, Communicator, MismatchError
from hccl_py.diagnosis.stall import STUCK_S


def _in_other_order(rank: int) -> tuple[Communicator, Communicator]:
    """Return two communicators of the same ranks, each rank's first one first."""
    one, other = Communicator(name="one"), Communicator(name="other")
    one.barrier()
    other.barrier()
    return (one, other) if rank != 1 else (other, one)


def calls_in_other_order(rank: int, world_size: int) -> list[str]:
    first, second = _in_other_order(rank)
    texts = []
    for comm in (first, second):
        if comm is second:
            # Not before: all would have called in that group, and the other rank's call ended well.
            wait_until(comm._state.core.failed, "the verdict comes")
        with pytest.raises(MismatchError) as caught:
            comm.all_reduce(np.ones(7))
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize(("world_size", "nodes"), [(2, 1), (3, 2)])
def test_both_groups_end_on_all_ranks_with_the_same_story(world_size: int, nodes: int) -> None:
    results = run_ranks(
        calls_in_other_order, world_size, env=lambda rank: {"HCCL_NODE_ID": str(rank % nodes)}
    )
    texts = {text for told in results for text in told}
    assert len(texts) == 1, texts
    (text,) = texts
    assert "ranks wait for each other in different groups" in text
    assert "all_reduce(sum, float64[7]) number 2 of this group" in text
    assert "all_reduce(sum, float64[7]) number 2 of group " in text


def waits_for_who_computes(rank: int, world_size: int) -> str:
    """To be late is no crime, and a timeout says what the late rank does instead."""
    comm = Communicator()
    comm.barrier()
    if rank == 1:
        wait_until(comm._state.core.failed, "the time of rank 0 is up")
    with pytest.raises(CollectiveTimeoutError) as caught:
        comm.barrier(timeout_s=1.25 * STUCK_S)  # a deadlock would be seen by then
    return str(caught.value)


def test_rank_that_is_late_makes_no_mismatch() -> None:
    one, other = run_ranks(waits_for_who_computes, 2)
    assert one == other
    assert "rank 1 (host" in one
    assert "which is in no collective, has not arrived" in one
