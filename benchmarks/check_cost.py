"""What it costs that every call is compared with those of the other ranks.

    hccl-launch --nproc-per-node 2 --module benchmarks.check_cost [BYTES ...]

Two communicators between the same ranks, one of which compares nothing, take turns: each round
times some hundred calls on one, then as many on the other. So whatever else the machine does meets
both. The check is not optional for anybody else: what it finds would be a wrong result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from operator import methodcaller

import numpy as np

from benchmarks.harness import parser_of_command
from hccl_py.command_line import parse_size
from hccl_py.communicator import Communicator

_NUM_ROUNDS = 201
_ROUND_S = 0.01
_SIZES = (4, 4096, 65536, 1 << 20)

Call = Callable[[Communicator], None]


def main() -> None:
    """Measure, and have rank 0 print a table."""
    parser = parser_of_command("benchmarks.check_cost", "Measure what checks cost.")
    parser.add_argument("sizes", type=parse_size, nargs="*", default=_SIZES)
    sizes = parser.read().sizes
    with (
        Communicator(name="checked", timeout_s=120.0) as checked,
        Communicator(name="unchecked", timeout_s=120.0) as unchecked,
    ):
        unchecked._state.core.set_checks(False)
        rank, n = checked.rank, checked.world_size
        if rank == 0:
            print(f"{n} ranks, {len(checked.nodes)} nodes, {_NUM_ROUNDS} rounds; us a call")
            print(f"{'':>21} {'fastest tenth of rounds':>27} {'all':>8}")
            titles = f"{'collective':>12} {'bytes':>8} {'checked':>9} {'without':>9}"
            print(f"{titles} {'cost':>7} {'cost':>8}")
        for name, num_bytes, call in _cases(n, sizes):
            pairs = _rounds(checked, unchecked, call)
            if rank == 0:
                with_us, without_us = np.percentile(np.array(pairs), 10, axis=0)
                median_us = statistics.median(a - b for a, b in pairs)
                row = f"{name:>12} {num_bytes:>8} {with_us:>9.2f} {without_us:>9.2f}"
                print(f"{row} {with_us - without_us:>+7.2f} {median_us:>+8.2f}", flush=True)


def _cases(n: int, sizes: Sequence[int]) -> list[tuple[str, int, Call]]:
    """Return name, bytes of the whole, and call."""
    cases: list[tuple[str, int, Call]] = []
    for num_bytes in sizes:
        block = np.zeros(max(1, num_bytes // n), np.uint8)
        data, whole = np.zeros((2, n, block.size), np.uint8)
        cases += [
            ("all_reduce", data.size, methodcaller("all_reduce", data=data)),
            ("all_gather", whole.size, methodcaller("all_gather", output=whole, input=block)),
            ("all_to_all", whole.size, methodcaller("all_to_all", output=whole, input=data)),
        ]
    return cases


def _rounds(
    checked: Communicator, unchecked: Communicator, call: Call
) -> list[tuple[float, float]]:
    """Return microseconds a call with and without, of every round on this rank."""
    num_calls = _calls_per_round(checked, call)
    pairs = []
    for turn in range(_NUM_ROUNDS):
        # The second one finds the caches warm, so the order alternates.
        if turn % 2:
            without_us = _time_us(unchecked, call, num_calls)
            pairs.append((_time_us(checked, call, num_calls), without_us))
        else:
            with_us = _time_us(checked, call, num_calls)
            pairs.append((with_us, _time_us(unchecked, call, num_calls)))
    return pairs


def _time_us(communicator: Communicator, call: Call, num_calls: int) -> float:
    communicator.barrier()
    began = time.perf_counter()
    for _ in range(num_calls):
        call(communicator)
    return (time.perf_counter() - began) / num_calls * 1e6


def _calls_per_round(communicator: Communicator, call: Call) -> int:
    """Return how many fit a round: all ranks must make as many, so the slowest decides."""
    num_calls = np.array([max(5, int(_ROUND_S / _time_us(communicator, call, 20) * 1e6))])
    communicator.broadcast(num_calls, 0)
    return int(num_calls[0])


if __name__ == "__main__":
    main()
