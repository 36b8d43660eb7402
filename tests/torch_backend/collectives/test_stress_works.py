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
