"""One rank of one fresh start: the loop that times every contender in the same way.

A contender's own Python runs this file by its path. The environment of an MPI has numpy and mpi4py
but not hccl-py, so this file imports only numpy, `library`, and the modules of its contender.

The argument is JSON: `api` (a name of LIBRARIES), `op`, `seconds` for all sizes together, `sizes`
as [bytes, input count, output count], `rewritten` (write new values into the input before each
call), and `result`, the file that rank 0 writes: an object for each size.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    # Python put this folder first; its files must not be imported by a bare name. The checkout
    # comes last, because its hccl_py/ must not hide the installed package.
    sys.path[:] = [*sys.path[1:], str(Path(__file__).parents[2])]

from benchmarks.peers.library import (  # noqa: E402
    ROOT,
    Array,
    Call,
    Library,
    open_communicator,
    open_deepspeed,
    open_mpi,
    open_oneccl,
    open_torch,
)

_NUM_BLOCKS = 10
# Many calls: 100 calls of 0.3 us end before every rank that shares a core has had its turn, and
# would measure how ranks leave the barrier.
_MIN_CALLS, _MAX_CALLS = 3, 10_000
# A library's own threads may compute during the first calls, which differ from later ones then.
_NUM_WARMUPS, _MAX_WARMUP = 3, 1_000
_NUM_FIRST = 100


def main() -> None:
    """Measure all sizes; rank 0 writes the file."""
    task = json.loads(sys.argv[1])
    library = LIBRARIES[task["api"]]()
    seconds = task["seconds"] / len(task["sizes"])
    results = [
        {"bytes": size, **_measure(library, task["op"], counts, seconds, task["rewritten"])}
        for size, *counts in task["sizes"]
    ]
    if library.rank == ROOT:
        Path(task["result"]).write_text(json.dumps(results))
    library.barrier()
    library.close()


def _measure(
    library: Library, op: str, counts: list[int], seconds: float, rewritten: bool
) -> dict[str, object]:
    """Time the first calls of one size, check it, and time later ones.

    A barrier precedes each block of calls; inside a block calls are back to back, but for the
    writes into the input. The time of a block is that of its slowest rank. Single calls are timed
    too, but a rank may run ahead (the root of a broadcast) and find the next calls done: their
    median means little if ranks share cores.
    """
    input = library.zeros(counts[0])
    output = library.zeros(counts[1]) if counts[1] else input
    input.fill(0)
    output.fill(0)  # its pages exist before the first call
    call = library.bind(op, input, output)
    change = partial(input.fill, 1) if rewritten else None
    first_ns = _time(library, call, 1, change)
    call_s = _slowest_s(library, first_ns)
    num_more = int(min(_NUM_FIRST - 1, max(1, seconds / call_s)))
    first_s = _slowest_s(library, first_ns + _time(library, call, num_more, change))
    _check(library, op, call, input, output)
    for _ in range(_NUM_WARMUPS):
        count = int(min(_MAX_WARMUP, max(1, seconds / 10 / call_s)))
        call_s = _slowest_s(library, _time(library, call, count, change))
    num_calls = int(min(_MAX_CALLS, max(_MIN_CALLS, seconds / call_s)))
    num_blocks = min(_NUM_BLOCKS, num_calls)
    times = [_time(library, call, num_calls // num_blocks, change) for _ in range(num_blocks)]
    mine_us = np.array(times, np.float64) / 1e3
    every_us = np.zeros((library.world_size, *mine_us.shape))
    every_us[library.rank] = mine_us
    library.slowest(every_us)  # the other ranks have zeros there, so every rank gets all times
    blocks_us = every_us.mean(axis=2).max(axis=0)
    return {
        "time_us": float(np.median(blocks_us)),
        "first_us": first_s * 1e6,
        "blocks_us": blocks_us.tolist(),
        "median_call_us": float(np.median(every_us.max(axis=0))),
        "calls": mine_us.size,
    }


def _slowest_s(library: Library, times_ns: list[int]) -> float:
    """Return the mean of calls on the slowest rank, the same on all ranks."""
    slowest = np.array([max(100.0, float(np.mean(times_ns)))])
    library.slowest(slowest)
    return float(slowest[0]) / 1e9


def _time(library: Library, call: Call, count: int, change: Call | None) -> list[int]:
    """Return the nanoseconds of each of `count` calls on this rank, with a change before each."""
    times: list[int] = []
    clock = time.perf_counter_ns
    library.barrier()
    gc.disable()
    for _ in range(count):
        if change is not None:
            change()
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


def _open_copies() -> Library:
    from benchmarks.peers.copies import open_copies

    return open_copies()


def _open_sockets() -> Library:
    from benchmarks.peers.sockets import open_sockets

    return open_sockets()


LIBRARIES: dict[str, Callable[[], Library]] = {
    "communicator": open_communicator,
    "mpi": open_mpi,
    "oneccl": open_oneccl,
    "torch hccl": partial(open_torch, "hccl"),
    "torch gloo": partial(open_torch, "gloo"),
    "deepspeed": open_deepspeed,
    "copies": _open_copies,
    "sockets": _open_sockets,
}


if __name__ == "__main__":
    main()
