"""What a replayed graph costs beside its calls one by one and in a group().

    hccl-launch --nproc-per-node 2 --module benchmarks.replay [ROUNDS]

All ways make the same all_reduces on the same buffers. They take turns, in an order that moves on
with every round, so whatever else the machine does meets all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hccl_py
from benchmarks.harness import parser_of_command
from hccl_py import Communicator
from hccl_py.command_line import parse_positive

_NUM_ROUNDS = 41
_ROUND_S = 0.004
_SIZES = (4, 1024, 65536)
_NUM_CALLS = (1, 10, 100)

Way = Callable[[], Any]


def main() -> None:
    """Measure, and have rank 0 print a table for the docs."""
    parser = parser_of_command("benchmarks.replay", "Measure a replayed graph.")
    parser.add_argument("rounds", type=parse_positive, nargs="?", default=_NUM_ROUNDS)
    num_rounds = parser.read().rounds
    dist.init_process_group("hccl")
    with Communicator(name="replay", timeout_s=120.0) as comm:
        if comm.rank == 0:
            print(f"{comm.world_size} ranks, {num_rounds} rounds; us a call: median (p10-p90)")
            print("| bytes | calls | dist, one by one | one by one | group() | replay | saved |")
            print("|--:|--:|--:|--:|--:|--:|--:|")
        for num_bytes in _SIZES:
            for num_calls in _NUM_CALLS:
                times = _measure(comm, num_bytes, num_calls, num_rounds)
                if comm.rank == 0:
                    print(_row(num_bytes, num_calls, times), flush=True)
    dist.destroy_process_group()


def _measure(comm: Communicator, num_bytes: int, num_calls: int, num_rounds: int) -> Any:
    """Return microseconds a call, of every round and way."""
    buffers = [np.zeros(num_bytes // 4, np.float32) for _ in range(num_calls)]
    tensors = [torch.from_numpy(one) for one in buffers]

    def of_torch() -> None:
        for one in tensors:
            dist.all_reduce(one)

    def one_by_one() -> None:
        for one in buffers:
            comm.all_reduce(one)

    def grouped() -> None:
        with hccl_py.group():
            one_by_one()

    with hccl_py.capture() as graph:
        one_by_one()
    ways: list[Way] = [of_torch, one_by_one, grouped, graph.replay]
    times = np.zeros((num_rounds, len(ways)))
    num_turns = _turns(comm, one_by_one)
    for turn in range(num_rounds):
        for place in range(len(ways)):
            way = (place + turn) % len(ways)
            times[turn, way] = _time_us(comm, ways[way], num_turns) / num_calls
    return times


def _time_us(comm: Communicator, way: Way, num_turns: int) -> float:
    way()  # the caches are another way's
    comm.barrier()
    began = time.perf_counter()
    for _ in range(num_turns):
        way()
    return (time.perf_counter() - began) / num_turns * 1e6


def _turns(comm: Communicator, way: Way) -> int:
    """Return how often a way fits a round: all ranks must make as many, so rank 0 decides."""
    num_turns = np.array([max(3, int(_ROUND_S / _time_us(comm, way, 10) * 1e6))])
    comm.broadcast(num_turns, 0)
    return int(num_turns[0])


def _row(num_bytes: int, num_calls: int, times: Any) -> str:
    low, middle, high = np.percentile(times, (10, 50, 90), axis=0)
    cells = [f"{m:.2f} ({a:.2f}-{b:.2f})" for a, m, b in zip(low, middle, high, strict=True)]
    saved = np.median(times[:, 1] - times[:, 3])
    return f"| {num_bytes} | {num_calls} | {' | '.join(cells)} | {saved:.2f} |"


if __name__ == "__main__":
    main()
