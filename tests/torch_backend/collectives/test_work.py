"""Works: what an asynchronous call returns; groups in threads, and calls in flight."""

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from features import feature
from ranks import run_ranks
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
    wait_tensor,
)

SECTION = "Works"


def ones(size: int = 4) -> torch.Tensor:
    return torch.ones(size)


@feature(SECTION, "wait, is_completed, is_success, exception, result, synchronize")
def test_work_answers(rank: int, world_size: int) -> list[object]:
    """After the end, and as often as asked."""
    tensor = ones()
    work = dist.all_reduce(tensor, async_op=True)
    answers: list[object] = [isinstance(work, dist.Work), work.wait(), work.wait()]
    work.synchronize()
    answers += [work.is_completed(), work.is_success(), work.exception() is None]
    (result,) = work.result()
    return [*answers, result.data_ptr() == tensor.data_ptr(), result.clone(), tensor]


def numbers(rank: int, world_size: int) -> list[int]:
    """Return the numbers of three works, and then the group's."""
    group: Any = dist.group.WORLD
    works = [dist.all_reduce(ones(), async_op=True) for _ in range(2)]
    found = [work._get_sequence_number() for work in works]
    dist.broadcast(ones(), 0)
    work = dist.barrier(async_op=True)
    work.wait()
    return [*found, work._get_sequence_number(), group._get_sequence_number_for_group()]


def test_works_of_a_group_have_the_numbers_of_its_calls() -> None:
    assert run_ranks(numbers, 2, backend="hccl") == [[1, 2, 4, 4]] * 2


def asynchronous_calls(rank: int, n: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """One of each function that takes `async_op`, with its output first or second."""
    blocks, whole = [ones(2) * (r + 1) for r in range(n)], torch.arange(2.0 * n) + rank
    return [
        (dist.all_reduce, (ones(),)),
        (dist.broadcast, (ones() * rank, 1)),
        (dist.reduce, (ones(), 0)),
        (dist.all_gather, ([ones(2) for _ in range(n)], ones(2) * rank)),
        (dist.all_gather_single, (ones(2 * n), ones(2) * rank)),
        (dist.gather, (ones(2) * rank, [ones(2) for _ in range(n)] if rank == 0 else None)),
        (dist.scatter, (ones(2), blocks if rank == 0 else None)),
        (dist.reduce_scatter, (ones(2), blocks)),
        (dist.reduce_scatter_single, (ones(2), whole)),
        (dist.all_to_all, ([ones(2) for _ in range(n)], blocks)),
        (dist.all_to_all_single, (ones(2 * n), whole)),
    ]


@feature(SECTION, "async_op=True of every function, waited for in another order")
def test_works_of_every_function(rank: int, world_size: int) -> list[object]:
    calls = asynchronous_calls(rank, world_size)
    works = [function(*arguments, async_op=True) for function, arguments in calls]
    works.append(dist.barrier(async_op=True))
    states: list[object] = [work.wait() for work in reversed(works)]
    # What is not the root's is no result of `reduce` and `gather`.
    outputs = [value for function, (*value, _) in calls if function is not dist.reduce]
    return [*states, calls[0][1][0], *outputs]


@feature(SECTION, "every function in a world of one rank", world_size=1)
def test_works_of_a_single_rank(rank: int, world_size: int) -> list[torch.Tensor]:
    """Blocking, then asynchronous, both with the same outcome."""
    results: list[torch.Tensor] = []
    for options in ({}, {"async_op": True}):
        whole, block = torch.arange(2.0), ones(2)
        outputs = [ones(), *(torch.zeros(2) for _ in range(7))]
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (dist.all_reduce, (outputs[0],)),
            (dist.all_gather, ([outputs[1]], block)),
            (dist.all_gather_single, (outputs[2], block)),
            (dist.gather, (block, [outputs[3]], 0)),
            (dist.scatter, (outputs[4], [block], 0)),
            (dist.reduce_scatter, (outputs[5], [block])),
            (dist.reduce_scatter_single, (outputs[6], block)),
            (dist.all_to_all, ([outputs[7]], [block])),
            (dist.broadcast, (block, 0)),
            (dist.reduce, (block, 0)),
        ]
        for function, arguments in calls:
            work = function(*arguments, **options)
            if options:
                work.wait()
        exchanged = torch.empty(2)
        dist.all_to_all_single(exchanged, whole)
        dist.barrier()
        results = [*outputs, block, exchanged]
    return results


@feature(
    SECTION,
    "wait(timeout) that is too short",
    note="raises, and the call goes on: a later wait ends well",
)
def test_wait_with_a_timeout(rank: int, world_size: int) -> list[object]:
    tensor = ones()
    late = rank == 1
    if late:
        dist.recv(torch.empty(1), 0)
    work = dist.all_reduce(tensor, async_op=True)
    timed_out = False
    if not late:
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            timed_out = "timed out" in str(error).lower()
        dist.send(torch.ones(1), 1)
    ended = work.wait(timedelta(seconds=20))
    return [timed_out, late, ended, tensor.tolist()]


@feature(SECTION, "get_future().then(...), chained")
def test_futures(rank: int, world_size: int) -> list[object]:
    tensor = ones()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    first = future.then(lambda done: done.value()[0] + 1)
    second = first.then(lambda done: done.wait() * 10)
    values = future.wait()
    works = [dist.all_reduce(ones() * i, async_op=True) for i in range(5)]
    together = torch.futures.collect_all([work.get_future() for work in works])
    sums = [one.value()[0] for one in together.wait()]
    return [second.wait(), values[0], future.done(), *sums]


@feature(SECTION, "a callback that starts collectives and waits for them")
def test_callbacks_that_communicate(rank: int, world_size: int) -> list[torch.Tensor]:
    """As PowerSGD's hook does; the next collective is started by another callback."""

    def nested(done: Any) -> list[torch.Tensor]:
        square = done.value()[0] ** 2
        return [dist.all_reduce(square, async_op=True).get_future().wait()[0] + 1]

    results = []
    for i in range(4):
        future = dist.all_reduce(ones(1000) * i, async_op=True).get_future()
        results.append(future.then(nested).then(nested).wait()[0])
    return results


def asks_for_a_future_after_the_end(rank: int, world_size: int) -> tuple[bool, list[int]] | None:
    """While a callback of an earlier call runs; DDP's reducer reads the value at once then."""
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["rank 0 has added its callback"])
        dist.all_reduce(ones())
        dist.all_reduce(ones())
        return None
    order, done, goes_on = list[int](), list[bool](), threading.Event()

    def slow(_: Any) -> None:
        assert goes_on.wait(60)
        order.append(1)

    def ask() -> None:
        future = work.get_future()
        done.append(future.done())
        future.then(lambda _: order.append(2)).wait()

    earlier = dist.all_reduce(ones(), async_op=True).get_future().then(slow)
    store.set("rank 0 has added its callback", "")
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()
    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.2)  # if it did not wait it would be over by then
    goes_on.set()
    asking.join()
    earlier.wait()
    return done[0], order


def test_future_of_a_call_that_was_waited_for_is_done() -> None:
    assert run_ranks(asks_for_a_future_after_the_end, 2, backend="hccl")[0] == (True, [1, 2])


def starts_in_callbacks(rank: int, world_size: int) -> list[list[float]]:
    """Rank 0's callback comes before the group's next call, other ranks' callbacks after it."""
    has_called = threading.Event()

    def nested(done: Any) -> torch.Tensor:
        if rank:
            has_called.wait()
        work = dist.all_reduce(done.value()[0] + 1, async_op=True)
        gathered = [torch.empty(3) for _ in range(world_size)]
        dist.all_gather(gathered, work.get_future().wait()[0] + rank)
        return torch.cat(gathered)

    for peer in range(1, world_size) if rank == 0 else ():
        dist.recv(torch.empty(1), peer)
    future = dist.all_reduce(ones(3), async_op=True).get_future()
    if rank == 0:
        future.wait()  # so the callback runs at once, on this thread
    added = torch.futures.collect_all([future.then(nested)])
    if rank:
        dist.send(ones(1), 0)
    tensor = ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    has_called.set()
    work.wait()
    return [added.wait()[0].value().tolist(), tensor.tolist()]


@pytest.mark.parametrize("world_size", [2, 4])
def test_collectives_of_callbacks_meet_each_other(world_size: int) -> None:
    results = run_ranks(starts_in_callbacks, world_size, backend="hccl")
    total = float((world_size + 1) * world_size)
    gathered = [total + rank for rank in range(world_size) for _ in range(3)]
    assert results == [[gathered, [float(world_size)] * 5]] * world_size


@feature(SECTION, "outputs that only the work holds")
def test_outputs_that_only_the_work_holds(rank: int, world_size: int) -> torch.Tensor:
    """As a hook of DDP does that reduces a copy, waits, and returns the future."""
    work = dist.all_reduce(torch.full((5000,), rank + 1.0), async_op=True)
    work.wait()
    assert torch.equal(work.result()[0], work.get_future().wait()[0])
    future = dist.all_reduce(torch.full((5000,), rank + 1.0), async_op=True).get_future()
    assert torch.equal(future.wait()[0], work.result()[0])
    result: torch.Tensor = work.get_future().then(lambda done: done.value()[0]).wait()
    return result


def run_in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Return what each returned, or raise what the first of them raised."""
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = functions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@feature(SECTION, "collectives on different groups from several threads", world_size=3)
def test_groups_in_threads(rank: int, world_size: int) -> list[list[float]]:
    groups = [dist.new_group() for _ in range(4)]

    def work_on(number: int) -> list[float]:
        results = []
        for i in range(20):
            tensor = torch.full((1000 * number + 1,), rank + 10.0 * number + i)
            dist.all_reduce(tensor, group=groups[number])
            gathered = torch.empty(world_size)
            dist.all_gather_single(gathered, tensor[:1] + rank, group=groups[number])
            results += [tensor[-1].item(), *gathered.tolist()]
        return results

    return run_in_threads(*(lambda number=number: work_on(number) for number in range(4)))


COMPILED = "Functional collectives and torch.compile"


@feature(COMPILED, "async calls waited for by wait_tensor, allow_inflight_collective_…")
def test_calls_in_flight_are_waited_for_by_their_tensors(rank: int, world_size: int) -> list[float]:
    """More of them than a group remembers, and nobody keeps their works."""
    with allow_inflight_collective_as_graph_input_ctx():
        tensors = [torch.full((5_000,), float(index + rank)) for index in range(600)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        gc.collect()
        return [float(wait_tensor(tensor).double().mean()) for tensor in tensors]


@feature(COMPILED, "all_gather and all_to_all in flight, waited for by wait_tensor")
def test_outputs_in_flight_are_waited_for_by_their_tensors(
    rank: int, world_size: int
) -> list[torch.Tensor]:
    """The outputs are registered, strided ones too; inputs need not be."""
    results = []
    with allow_inflight_collective_as_graph_input_ctx():
        for size in (1, 3_000, 200_000):
            gathered = torch.zeros(world_size * size)
            dist.all_gather_single(gathered, torch.full((size,), 1.0 + rank), async_op=True)
            moved = torch.zeros(world_size * size)
            source = torch.arange(float(world_size * size)) + rank
            dist.all_to_all_single(moved, source, async_op=True)
            results += [wait_tensor(gathered).clone(), wait_tensor(moved).clone()]
    return results
