"""Ctrl-C in one rank ends the call under way at once, everywhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S, Moment
from rank_processes import is_asleep, on_nodes
from ranks import run_ranks
from thread_ranks import wait_until
from torch.nn.parallel import DistributedDataParallel

from hccl_py import AbortedError, Communicator
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.deadline import Deadline


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


class Told(Exception):  # noqa: N818  # what a program's own handler raises
    """Out of a handler of a signal."""


def tell(number: int, frame: object) -> None:
    raise Told(number)


def interrupted(wait: Callable[[], object]) -> None:
    """Have a handler raise while this thread waits: it comes out as itself, soon."""
    came: list[Moment] = []

    def interrupt() -> None:
        wait_until(lambda: is_asleep(os.getpid()), "the main thread waits")
        came.append(Moment.now())
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Told) as caught:
        wait()
    assert type(caught.value) is Told
    assert Moment.now() - came[0] < 1.0
    thread.join()


def torchs_waits_are_interrupted(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    inputs = torch.ones(2, 8)
    for _ in range(2):
        model(inputs).sum().backward()
    loss = model(inputs).sum()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    dist.barrier()
    if rank == 1:
        store.get("interrupted")
        return
    signal.signal(signal.SIGUSR1, tell)
    try:
        interrupted(lambda: dist.monitored_barrier())
        interrupted(lambda: SealedStore(store, None).wait(["a"], 0, 1, Deadline(HANG_S), "", list))
        interrupted(loss.backward)
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        interrupted(future.wait)
        interrupted(future.then(lambda done: done.value()).wait)
    finally:
        store.set("interrupted", "")


def test_what_a_handler_raises_comes_out_of_every_wait_of_torch_as_itself() -> None:
    run_ranks(torchs_waits_are_interrupted, 2, backend="hccl")
