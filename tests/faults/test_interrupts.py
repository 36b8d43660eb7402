"""Ctrl-C in one rank ends the call under way at once, everywhere."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from quiet_clock import Moment
from rank_processes import is_asleep, on_nodes
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import AbortedError, Communicator


def one_is_interrupted(rank: int, world_size: int) -> tuple[float, str, int | None]:
    comm = Communicator()
    began = 0.0
    if rank == 0:
        comm.barrier()
        slept = comm.statistics()["sleeps"]

        def interrupt() -> None:
            wait_until(
                lambda: comm.statistics()["sleeps"] > slept and is_asleep(os.getpid()),
                "rank 0 is blocked in the call",
            )
            nonlocal began
            began = Moment.now()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            comm.all_reduce(np.ones(10))
        except KeyboardInterrupt:
            took = Moment.now() - began
            with pytest.raises(AbortedError, match="signal") as caught:
                comm.barrier()
            return took, str(caught.value), caught.value.rank
        raise AssertionError("not interrupted")
    with pytest.raises(AbortedError) as caught:
        comm.barrier()  # a slow rank is still here
        comm.recv(np.zeros(1), 3 - rank)  # another call altogether
    return 0.0, str(caught.value), caught.value.rank


@pytest.mark.parametrize("nodes", [1, 3])
def test_interrupt_ends_the_call_at_once_everywhere(nodes: int) -> None:
    results = run_ranks(one_is_interrupted, 3, env=on_nodes(nodes, 3))
    assert results[0][0] < 0.5
    for _, message, culprit in results:
        assert culprit == 0
        assert "aborted by rank 0 (host" in message
        assert "a signal interrupted the call half-way" in message
