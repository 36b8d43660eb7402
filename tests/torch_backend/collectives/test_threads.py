"""Threads: every group may have one of its own."""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Works"


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


@feature(SECTION, "a thread that computes while collectives run")
def test_computing_beside_collectives(rank: int, world_size: int) -> list[object]:
    """A blocking call lets other threads of Python run."""
    counted, end = [0], threading.Event()

    def count() -> int:
        while not end.is_set():
            counted[0] += 1
            end.wait(0.001)
        return counted[0]

    def communicate() -> torch.Tensor:
        tensor = torch.ones(1000)
        if rank == 0:
            while counted[0] < 5:
                end.wait(0.001)
        dist.all_reduce(tensor)
        while counted[0] < 5:
            end.wait(0.001)
        end.set()
        return tensor

    several, tensor = run_in_threads(count, communicate)
    return [several >= 5, tensor]
