"""Works and futures: waiting, timing out, callbacks, errors, and who keeps what alive."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks


def check_work(rank: int, world_size: int) -> None:
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    assert work.wait()
    assert work.wait(timedelta(seconds=5))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    assert (tensor == world_size).all()

    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(300)]
    deadline = time.monotonic() + 20
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < deadline
        time.sleep(0)
    for _ in range(50):
        dist.all_reduce(torch.ones(70_000), async_op=True)  # dropped, and finished nevertheless
    dist.barrier()

    # The blocking call has nothing to wait for and nothing to keep.
    options = dist.AllreduceOptions()
    options.asyncOp = False
    group = dist.group.WORLD
    first, second = (group.allreduce([torch.ones(3)], options) for _ in range(2))
    assert first is second
    assert first.wait()
    assert first.get_future().wait() == []


def test_work_answers_everything_a_caller_may_ask() -> None:
    run_ranks(check_work, 2, backend="hccl")


def check_lifetime(rank: int, world_size: int) -> None:
    tensor = torch.ones(10_000)
    reference = weakref.ref(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    del tensor, work
    gc.collect()
    assert reference() is None, "a finished work must not keep its tensors"
    strided = torch.ones(10, 2)
    dist.all_reduce(strided[:, 0], async_op=True)  # nobody waits, yet it has to be written back
    deadline = time.monotonic() + 20
    while (strided[:, 0] != world_size).any():
        assert time.monotonic() < deadline
        time.sleep(0)
    assert (strided[:, 1] == 1).all()


def test_work_lets_go_of_tensors_and_staged_results_arrive_unwaited() -> None:
    run_ranks(check_lifetime, 2, backend="hccl")


def check_futures(rank: int, world_size: int) -> None:
    n = world_size
    tensor = torch.ones(4)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert isinstance(future, torch._C.Future)
    values = future.wait()
    assert values[0] is tensor or torch.equal(values[0], tensor)
    assert tensor.tolist() == [n] * 4

    # Callbacks that start collectives and block on them, as PowerSGD's hook does.
    def nested(done: torch.futures.Future) -> list[torch.Tensor]:
        square = done.value()[0] ** 2
        inner = dist.all_reduce(square, async_op=True).get_future().wait()
        return [inner[0] + 1]

    for i in range(8):
        outer = dist.all_reduce(torch.full((30_000,), float(i)), async_op=True)
        chained = outer.get_future().then(nested).then(nested)
        first = n * (i * n) ** 2 + 1
        assert (chained.wait()[0] == n * first**2 + 1).all()

    # Many at once: every callback runs, once.
    order: list[int] = []
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(20)]
    futures = [work.get_future() for work in works]
    noted = [future.then(lambda _, i=i: order.append(i)) for i, future in enumerate(futures)]
    torch.futures.wait_all(noted)
    assert sorted(order) == list(range(20))

    # Futures of transfers end in any order.
    peer = 1 - rank
    buffers = [torch.empty(1), torch.empty(1)]
    futures = [dist.irecv(buffers[tag], peer, tag=tag).get_future() for tag in range(2)]
    dist.send(torch.full((1,), 7.0), peer, tag=1)
    assert futures[1].wait()[0].item() == 7.0
    assert not futures[0].done()
    dist.barrier()
    dist.send(torch.full((1,), 8.0), peer, tag=0)
    assert futures[0].wait()[0].item() == 8.0

    # Asked for after the end, and twice.
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.get_future() is work.get_future()
    assert work.get_future().wait()[0].tolist() == [n * n] * 4
    names = {thread.name for thread in threading.enumerate()}
    assert "hccl-futures" in names


def test_futures_complete_and_their_callbacks_may_communicate() -> None:
    run_ranks(check_futures, 2, backend="hccl", timeout_s=30)


def check_future_of_nothing(rank: int, world_size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["seen"], timedelta(seconds=20))  # rank 0 cannot have been waiting for this one
    work = dist.all_reduce(torch.empty(0), async_op=True)
    called_back: list[int] = []
    work.get_future().then(lambda done: called_back.append(done.value()[0].numel()))
    assert called_back == [0]
    if rank == 0:
        store.set("seen", b"1")
    work.wait()


def test_future_of_an_empty_result_calls_back_at_once() -> None:
    run_ranks(check_future_of_nothing, 2, backend="hccl")


def check_no_thread(rank: int, world_size: int) -> None:
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    names = {thread.name for thread in threading.enumerate()}
    assert "hccl-futures" not in names


def test_no_thread_for_futures_that_nobody_asked_for() -> None:
    run_ranks(check_no_thread, 2, backend="hccl")


def check_futures_of_two_groups(rank: int, world_size: int) -> None:
    one, two = dist.new_group(), dist.new_group()
    if rank == 0:
        waiting = one.allreduce([torch.ones(1)]).get_future()
        other = two.allreduce([torch.ones(1)]).get_future()
        other.wait()  # rank 1 joins the first group's call only after this
        assert not waiting.done()
        dist.barrier()
        waiting.wait()
    else:
        two.allreduce([torch.ones(1)]).get_future().wait()
        dist.barrier()
        one.allreduce([torch.ones(1)]).wait()


def test_futures_of_one_group_do_not_wait_for_another() -> None:
    run_ranks(check_futures_of_two_groups, 2, backend="hccl", timeout_s=30)


def check_wait_timeout(rank: int, world_size: int) -> None:
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            work.wait(timedelta(milliseconds=100))
        assert 0.05 < time.monotonic() - began < 5
        assert not work.is_completed()
        dist.send(torch.ones(1), 1)
        work.wait()
        assert work.is_success()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(3))


def test_wait_timeout_is_honoured_and_the_work_goes_on() -> None:
    run_ranks(check_wait_timeout, 2, backend="hccl")


def check_call_timeout(rank: int, world_size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        work = group.allreduce([torch.ones(3)])
        future = work.get_future()
        chained = future.then(lambda done: done.value())
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out") as caught:
            work.wait()
        assert 0.5 < time.monotonic() - began < 10
        assert isinstance(caught.value.__cause__, TimeoutError)
        with pytest.raises(RuntimeError, match="Timed out"):
            future.wait()
        with pytest.raises(RuntimeError, match="Timed out"):
            chained.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
        # The group is broken and says why; the other group is not.
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()


def test_call_timeout_breaks_its_group_only_and_is_told_by_work_and_future() -> None:
    run_ranks(check_call_timeout, 2, backend="hccl")


def check_options_timeout(rank: int, world_size: int) -> None:
    group = dist.new_group()
    group.set_timeout(timedelta(seconds=30))
    assert group.options._timeout == timedelta(seconds=30)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            group.barrier(timeout=timedelta(milliseconds=200)).wait()
    dist.barrier()


def test_timeout_of_one_call_overrides_the_group() -> None:
    run_ranks(check_options_timeout, 2, backend="hccl", timeout_s=20)


def check_profiler(rank: int, world_size: int) -> None:
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.broadcast(torch.ones(3), 0)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["hccl:all_reduce"] == 2
    assert counts["hccl:broadcast"] == 1


def test_profiler_shows_collectives() -> None:
    run_ranks(check_profiler, 2, backend="hccl")
