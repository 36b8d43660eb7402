"""One rank of one fresh start: the loop that times every contender in the same way.

A contender's own Python runs this file by its path. The environment of an MPI has numpy and mpi4py
but not hccl-py, so this file imports only numpy, `library`, and the modules of its contender.

The argument is JSON: `api` (a name of LIBRARIES), `op`, `seconds` for all sizes together, `sizes`
as [bytes, input count, output count], and `result`, the file that rank 0 writes: an object for each
size.
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
    open_torch,
)

_NUM_BLOCKS = 10
# Many calls: 100 calls of 0.3 us end before every rank that shares a core has had its turn, and
# would measure how ranks leave the barrier.
_MIN_CALLS, _MAX_CALLS = 3, 10_000
# A library's own threads may compute during the first calls, which differ from later ones then.
_NUM_WARMUPS, _MAX_WARMUP = 3, 1_000


def main() -> None:
    """Measure all sizes; rank 0 writes the file."""
    task = json.loads(sys.argv[1])
    library = LIBRARIES[task["api"]]()
    seconds = task["seconds"] / len(task["sizes"])
    results = [
        {"bytes": size, **_measure(library, task["op"], counts, seconds)}
        for size, *counts in task["sizes"]
    ]
    if library.rank == ROOT:
        Path(task["result"]).write_text(json.dumps(results))
    library.barrier()
    library.close()


def _measure(library: Library, op: str, counts: list[int], seconds: float) -> dict[str, object]:
    """Check one size and time it.

    A barrier precedes each block of calls; inside a block calls are back to back. The time of a
    block is that of its slowest rank. Single calls are timed too, but a rank may run ahead (the
    root of a broadcast) and find the next calls done: their median means little if ranks share
    cores.
    """
    input = library.zeros(counts[0])
    output = library.zeros(counts[1]) if counts[1] else input
    call = library.bind(op, input, output)
    _check(library, op, call, input, output)
    call_s = _call_s(library, call, 2)
    for _ in range(_NUM_WARMUPS):
        call_s = _call_s(library, call, int(min(_MAX_WARMUP, max(1, seconds / 10 / call_s))))
    num_calls = int(min(_MAX_CALLS, max(_MIN_CALLS, seconds / call_s)))
    num_blocks = min(_NUM_BLOCKS, num_calls)
    times = [_time(library, call, num_calls // num_blocks) for _ in range(num_blocks)]
    mine_us = np.array(times, np.float64) / 1e3
    every_us = np.zeros((library.world_size, *mine_us.shape))
    every_us[library.rank] = mine_us
    library.slowest(every_us)  # the other ranks have zeros there, so every rank gets all times
    blocks_us = every_us.mean(axis=2).max(axis=0)
    return {
        "time_us": float(np.median(blocks_us)),
        "blocks_us": blocks_us.tolist(),
        "median_call_us": float(np.median(every_us.max(axis=0))),
        "calls": mine_us.size,
    }


def _call_s(library: Library, call: Call, count: int) -> float:
    """Return the mean of `count` calls on the slowest rank, the same on all ranks."""
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


def _open_copies() -> Library:
    from benchmarks.peers.copies import open_copies

    return open_copies()


def _open_sockets() -> Library:
    from benchmarks.peers.sockets import open_sockets

    return open_sockets()


LIBRARIES: dict[str, Callable[[], Library]] = {
    "communicator": open_communicator,
    "mpi": open_mpi,
    "torch hccl": partial(open_torch, "hccl"),
    "torch gloo": partial(open_torch, "gloo"),
    "deepspeed": open_deepspeed,
    "copies": _open_copies,
    "sockets": _open_sockets,
}


if __name__ == "__main__":
    main()
