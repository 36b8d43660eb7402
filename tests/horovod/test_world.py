"""The ranks of a job, its process sets, and ranks without data, on 3 ranks."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from quiet_clock import Moment
from rank_processes import is_asleep
from ranks import run_ranks
from thread_ranks import wait_until
from torch.distributed import TCPStore

import hccl_py.horovod as on_arrays
import hccl_py.horovod.torch as hvd

N = 3


def check_ranks(me: int) -> None:
    assert (hvd.rank(), hvd.size(), hvd.is_initialized()) == (me, N, True)
    # Nodes of two ranks and one.
    assert (hvd.local_rank(), hvd.local_size()) == [(0, 2), (1, 2), (0, 1)][me]
    assert (hvd.cross_rank(), hvd.cross_size()) == [(0, 2), (0, 1), (1, 2)][me]
    assert not hvd.is_homogeneous()
    hvd.init()  # does nothing
    assert hvd.size() == N


def check_process_sets(me: int) -> None:
    assert hvd.global_process_set.ranks == [0, 1, 2]
    outer = hvd.add_process_set([2, 0])
    inner = hvd.add_process_set(hvd.ProcessSet([1]))
    assert (outer.process_set_id, outer.ranks, outer.size()) == (1, [0, 2], 2)
    for wrong, words in (([0, 2], "duplicate"), ([0, 3], "ranks of 0..2"), ([], "ranks of 0..2")):
        with pytest.raises(ValueError, match=words):
            hvd.add_process_set(wrong)
    if outer.included():
        assert outer.rank() == me // 2
        assert hvd.broadcast(torch.tensor(me), 2, process_set=outer) == 2
        assert hvd.allgather_object(me, process_set=outer) == [0, 2]
        assert hvd.broadcast_object(me, 2, process_set=outer) == 2
        hvd.barrier(process_set=outer)
        with pytest.raises(ValueError, match="root_rank: expected one of the ranks"):
            hvd.broadcast(torch.tensor(me), 1, process_set=outer)
    else:
        assert hvd.allgather(torch.tensor([me]), process_set=inner).tolist() == [1]
        with pytest.raises(ValueError, match="not part of"):
            hvd.allreduce(torch.tensor(me), process_set=outer)
    assert hvd.remove_process_set(inner)
    assert not hvd.remove_process_set(inner)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert (inner.size(), inner.rank()) == (None, None)
    with pytest.raises(ValueError, match="that was added"):
        hvd.barrier(process_set=inner)


def check_join(me: int) -> None:
    """Rank 1 has no data, rank 2 most; a rank that joined gives zeros."""
    batches = [2, 0, 5]
    for batch in range(batches[me]):
        present = [rank for rank in range(N) if batches[rank] > batch]
        total = hvd.allreduce(torch.full((3,), me + 1.0), op=hvd.Sum)
        assert total.tolist() == [sum(rank + 1 for rank in present)] * 3
    assert hvd.join() == 2
    # A rank that goes on at once may be ahead of one that has not noticed the end of the join.
    assert hvd.allgather_object(me) == [0, 1, 2]
    assert hvd.allgather_object(hvd.join()) in [[rank] * N for rank in range(N)]


def all_checks(me: int, _: int) -> None:
    with pytest.raises(ValueError, match=r"use hvd.init\(\)"):
        hvd.rank()
    hvd.init()
    for check in (check_ranks, check_process_sets, check_join):
        check(me)
        hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    even = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[even])
    if even.included():
        assert hvd.allgather(torch.tensor([me]), process_set=even).tolist() == [0, 2]
    hvd.shutdown()


def test_world_of_three_ranks_on_two_nodes() -> None:
    run_ranks(all_checks, N, env=lambda rank: {"HCCL_NODE_ID": str(rank // 2)})


def test_environment_of_horovodrun_and_mpi_communicators_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="comm: expected None"):
        hvd.init(comm=[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MPI communicators"):
        hvd.ProcessSet(object())  # type: ignore[arg-type]
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="HOROVOD_SIZE is set and RANK is not"):
        hvd.init()


def test_answers_about_the_build_have_their_own_names() -> None:
    answers = {name: getattr(hvd, name) for name in dir(hvd) if name.endswith(("_built", "abled"))}
    assert len(answers) == 9
    assert not any(answer() for answer in answers.values())
    assert hvd.mpi_threads_supported() is True
    assert {name: answer.__name__ for name, answer in answers.items()} == {it: it for it in answers}


class Interrupted(Exception):
    pass


def one_is_interrupted(me: int, _: int, call: str) -> None:
    """Rank 0 waits for rank 1, which does not come, and gets a signal whose handler raises."""
    hvd.init()
    hvd.barrier()
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if me == 1:
        store.get("interrupted")
        return

    def handler(*_: object) -> None:
        raise Interrupted

    def interrupt() -> None:
        time.sleep(0.3)  # what the wait does first need not last as long
        wait_until(lambda: is_asleep(os.getpid()), "the main thread waits")
        os.kill(os.getpid(), signal.SIGALRM)

    signal.signal(signal.SIGALRM, handler)
    threading.Thread(target=interrupt).start()
    began = Moment.now()
    with pytest.raises(Interrupted) as caught:
        {
            "allreduce": lambda: hvd.allreduce(torch.ones(3)),
            "object": lambda: hvd.broadcast_object("one", 1),
            "async": lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(3))),
            "array": lambda: on_arrays.allgather(np.ones(3)),
        }[call]()
    assert type(caught.value) is Interrupted
    assert Moment.now() - began < 2.0
    store.set("interrupted", "")


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("call", ["allreduce", "object", "async", "array"])
def test_signal_ends_a_call_that_waits(call: str) -> None:
    run_ranks(one_is_interrupted, 2, call)
