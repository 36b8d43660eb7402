"""Works under load: threads, callbacks, works that nobody waits for, staged copies among them."""

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from features import feature

SECTION = "Works"


def in_threads(count: int, run: Callable[[int], None]) -> None:
    """Run it that often at once; raise what any of them raised."""
    problems: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            run(index)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@feature(SECTION, "works under load: three groups in three threads, some works dropped")
def test_works_under_load_in_threads(rank: int, world_size: int) -> list[float]:
    """Waited for, called back or dropped."""
    groups = [dist.new_group(range(world_size)) for _ in range(3)]
    sums = [0.0] * 3

    def run(index: int) -> None:
        group = groups[index]
        for step in range(30):
            whole = torch.full((2, 50 * (step % 7 + 1)), float(rank + index + step))
            tensor = whole[0]
            work = dist.all_reduce(tensor, group=group, async_op=True)
            if step % 3 == 0:
                continue  # dropped
            if step % 3 == 1:
                work.wait()
                sums[index] += float(tensor.sum())
            else:
                future = work.get_future().then(lambda done: done.value()[0].sum())
                sums[index] += float(future.wait())
        dist.barrier(group)

    in_threads(3, run)
    return sums


def sums_of_columns(world_size: int) -> list[list[list[float]]]:
    def column(rank: int, step: int) -> list[float]:
        total = sum(4_000.0 * (other + step) for other in range(world_size))
        return [total] * 4 + [4_000.0 * (rank + step)]

    return [[column(rank, step) for step in range(20)] for rank in range(world_size)]


@feature(
    SECTION,
    "works under load: a strided tensor's work waited for in several threads",
    alone=sums_of_columns,
    differs="it changes elements beside those of the strided tensor",
)
def test_a_work_is_waited_for_in_several_threads(rank: int, world_size: int) -> list[list[float]]:
    """The copy is written back once, before any of the waits returns, and nothing beside it."""
    results = []
    for step in range(20):
        whole = torch.full((4_000, 2), float(rank + step))
        strided = whole[:, 0]
        work = dist.all_reduce(strided, async_op=True)
        seen = [0.0] * 4

        def look(
            index: int,
            work: dist.Work = work,
            strided: torch.Tensor = strided,
            seen: list[float] = seen,
        ) -> None:
            work.wait()
            seen[index] = float(strided.sum())

        in_threads(4, look)
        results.append([*seen, float(whole[:, 1].sum())])
    return results
