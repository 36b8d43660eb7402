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
