"""One rank of one fresh start: the loop that times every contender alike.

A contender's own Python runs this file by its path. An environment that holds an MPI has numpy and
mpi4py and nothing of ours, so this file imports only numpy and, inside a function, the contender.

The argument is JSON: `api` (a name of LIBRARIES), `op`, `seconds` for all sizes together, `calls`
of each size (null: as many as the seconds allow), `sizes` as [bytes, input count, output count],
and `result`, the file that rank 0 writes: one object for each size.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], object]

_NUM_BLOCKS = 10
# A block of 100 calls of 0.3 us is over before each rank that shares a core had its turn: it tells
# who left the barrier last, and what that took the others.
_MIN_CALLS, _MAX_CALLS = 3, 10_000
# A library's own threads may compute beside the first calls: they say little of the later ones.
_NUM_WARMUPS, _MAX_WARMUP = 3, 1_000
ROOT = 0
_TIMEOUT_S = 120.0


class Library(NamedTuple):
    """A contender, opened.

    Attributes:
        bind: makes the call of a collective from its input and output; the other two hold where
            input and output are one buffer.
        slowest: replaces each float64 by the maximum over ranks, in place.
        barrier: its own.
        close: leaves the group.
        settle: waits until the calls of all ranks have ended, where a call does not see to that.
        has_result: False where a call moves as many bytes as the collective, but not its data.
    """

    rank: int
    world_size: int
    bind: Callable[[str, Array, Array], Call]
    slowest: Callable[[Array], object]
    barrier: Call
    close: Call
    settle: Call = lambda: None
    has_result: bool = True


def main() -> None:
    """Measure all sizes; rank 0 writes the file."""
    task = json.loads(sys.argv[1])
    library = LIBRARIES[task["api"]]()
    seconds = task["seconds"] / len(task["sizes"])
    results = [
        {"bytes": size, **_measure(library, task["op"], counts, seconds, task["calls"])}
        for size, *counts in task["sizes"]
    ]
    if library.rank == ROOT:
        Path(task["result"]).write_text(json.dumps(results))
    library.barrier()
    library.close()


def _measure(
    library: Library, op: str, counts: list[int], seconds: float, calls: int | None
) -> dict[str, object]:
    """Check one size and time it.

    A barrier opens each block of calls; inside a block they go back to back. A block is as slow as
    its slowest rank. Single calls are timed too, but a rank may run ahead (the root of a broadcast)
    and then find the next calls done: their median says little where ranks share cores.
    """
    input = np.zeros(counts[0], np.float32)
    output = np.zeros(counts[1], np.float32) if counts[1] else input
    call = library.bind(op, input, output)
    _check(library, op, call, input, output)
    call_s = _call_s(library, call, 2)
    for _ in range(_NUM_WARMUPS):
        call_s = _call_s(library, call, int(min(_MAX_WARMUP, max(1, seconds / 10 / call_s))))
    num_calls = calls or int(min(_MAX_CALLS, max(_MIN_CALLS, seconds / call_s)))
    num_blocks = min(_NUM_BLOCKS, num_calls)
    times = [_time(library, call, num_calls // num_blocks) for _ in range(num_blocks)]
    mine_us = np.array(times, np.float64) / 1e3
    every_us = np.zeros((library.world_size, *mine_us.shape))
    every_us[library.rank] = mine_us
    library.slowest(every_us)  # the others have zeros there: now every rank has all
    blocks_us = every_us.mean(axis=2).max(axis=0)
    return {
        "time_us": float(np.median(blocks_us)),
        "blocks_us": blocks_us.tolist(),
        "median_call_us": float(np.median(every_us.max(axis=0))),
        "calls": mine_us.size,
        "every_us": every_us.round(3).tolist(),  # of each rank, block and call
    }


def _call_s(library: Library, call: Call, count: int) -> float:
    """Return the mean of so many calls on the slowest rank: all make equally many by it."""
    slowest = np.array([max(100.0, float(np.mean(_time(library, call, count))))])
    library.slowest(slowest)
    return float(slowest[0]) / 1e9


def _time(library: Library, call: Call, count: int) -> list[int]:
    """Return the nanoseconds of each of `count` calls on this rank."""
    times: list[int] = []
    clock = time.perf_counter_ns
    library.barrier()
    gc.disable()
    for _ in range(count):
        begin = clock()
        call()
        times.append(clock() - begin)
    gc.enable()
    return times


def _check(library: Library, op: str, call: Call, input: Array, output: Array) -> None:
    """Run the call once on known data; then set its buffers to zero, which touches every page."""
    n = library.world_size
    input.fill(library.rank + 1)
    library.barrier()
    call()
    library.settle()
    total = n * (n + 1) // 2
    first, last = {"broadcast": (1, 1), "all_gather": (1, n), "all_to_all": (1, n)}.get(
        op, (total, total)
    )
    expected = output.size and not (op == "reduce" and library.rank != ROOT)
    if library.has_result and expected and (output[0] != first or output[-1] != last):
        raise SystemExit(
            f"{op} on rank {library.rank}: expected {first} to {last} in its output, "
            f"got {output[0]:g} to {output[-1]:g}"
        )
    input.fill(0)
    output.fill(0)


def open_communicator(*where: Any) -> Library:
    """Open one; `where` is store, rank and world size, or nothing: by the environment."""
    from hccl_py import Communicator, ReduceOp

    communicator = Communicator(*where, timeout_s=_TIMEOUT_S)

    def bind(op: str, input: Array, output: Array) -> Call:
        calls: dict[str, Call] = {
            "all_reduce": partial(communicator.all_reduce, input),
            "broadcast": partial(communicator.broadcast, input, ROOT),
            "reduce": partial(communicator.reduce, input, ROOT),
            "all_gather": partial(communicator.all_gather, output, input),
            "reduce_scatter": partial(communicator.reduce_scatter, output, input),
            "all_to_all": partial(communicator.all_to_all, output, input),
            "barrier": communicator.barrier,
        }
        return calls[op]

    return Library(
        communicator.rank,
        communicator.world_size,
        bind,
        lambda values: communicator.all_reduce(values, ReduceOp.MAX),
        communicator.barrier,
        communicator.close,
    )


def _open_mpi() -> Library:
    mpi: Any = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    rank = world.Get_rank()

    def bind(op: str, input: Array, output: Array) -> Call:
        # With its type named, mpi4py need not find it out in each call.
        data, result = [input, mpi.FLOAT], [output, mpi.FLOAT]
        reduced = (mpi.IN_PLACE, data) if rank == ROOT else (data, None)
        calls: dict[str, Call] = {
            "all_reduce": partial(world.Allreduce, mpi.IN_PLACE, data),
            "broadcast": partial(world.Bcast, data, ROOT),
            "reduce": partial(world.Reduce, *reduced, mpi.SUM, ROOT),
            "all_gather": partial(world.Allgather, data, result),
            "reduce_scatter": partial(world.Reduce_scatter_block, data, result),
            "all_to_all": partial(world.Alltoall, data, result),
            "barrier": world.Barrier,
        }
        return calls[op]

    def slowest(values: Array) -> None:
        world.Allreduce(mpi.IN_PLACE, values, mpi.MAX)

    return Library(rank, world.Get_size(), bind, slowest, world.Barrier, lambda: None)


def _open_torch(backend: str) -> Library:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))

    def bind(op: str, input: Array, output: Array) -> Call:
        data, result = torch.from_numpy(input), torch.from_numpy(output)
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, data),
            "broadcast": partial(dist.broadcast, data, ROOT),
            "reduce": partial(dist.reduce, data, ROOT),
            "all_gather": partial(dist.all_gather_single, result, data),
            "reduce_scatter": partial(dist.reduce_scatter_single, result, data),
            "all_to_all": partial(dist.all_to_all_single, result, data),
            "barrier": dist.barrier,
        }
        return calls[op]

    def slowest(values: Array) -> None:
        dist.all_reduce(torch.from_numpy(values), dist.ReduceOp.MAX)

    return Library(
        dist.get_rank(),
        dist.get_world_size(),
        bind,
        slowest,
        dist.barrier,
        dist.destroy_process_group,
    )


def _open_copies() -> Library:
    return import_module("hccl_py.bench.peers.copies").open_copies()  # type: ignore[no-any-return]


def _open_sockets() -> Library:
    return import_module("hccl_py.bench.peers.sockets").open_sockets()  # type: ignore[no-any-return]


LIBRARIES: dict[str, Callable[[], Library]] = {
    "communicator": open_communicator,
    "mpi": _open_mpi,
    "torch hccl": partial(_open_torch, "hccl"),
    "torch gloo": partial(_open_torch, "gloo"),
    "copies": _open_copies,
    "sockets": _open_sockets,
}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: none of its files is to be imported by a bare name
    main()
