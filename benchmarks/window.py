"""Times puts and signals of a window between two ranks of this machine, beside one thread's copy.

    python -m benchmarks.window --rounds 41

A round measures each size as a put and as numpy's copy of the same array into ordinary memory of
this process, in turns; the figures are medians of the rounds. `signal` is half of the way there and
back of a signal. With HCCL_TRANSPORT=tcp the ranks share no memory, and a put is a message.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

import hccl_py
from benchmarks.harness import parser_of_command
from hccl_py.bench.collective.output.text import lay_out
from hccl_py.command_line import parse_positive

SIZES = (4, 4096, 65536, 1 << 20, 64 << 20)
ROUND_BYTES = 64 << 20
MOST_CALLS = 2000


def seconds_of(call: Callable[[], object], num_calls: int) -> float:
    """Return the time of one call."""
    begin = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - begin) / num_calls


def measure(rounds: int) -> list[tuple[str, float, float]]:
    """Return sizes and the seconds of a put and of a copy; rank 0 measures."""
    found = []
    with hccl_py.Communicator() as comm, comm.window(hccl_py.empty(SIZES[-1], np.uint8)) as window:
        for num_bytes in SIZES if comm.rank == 0 else ():
            source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
            num_calls = min(max(ROUND_BYTES // num_bytes, 1), MOST_CALLS)
            ways = lambda s=source: window.put(s, 1), lambda s=source, t=target: np.copyto(t, s)
            times = [[seconds_of(way, num_calls) for way in ways] for _ in range(rounds)]
            put, copy = (statistics.median(column) for column in zip(*times, strict=True))
            found.append((str(num_bytes), put, copy))

        def there_and_back() -> None:
            window.signal(1 - comm.rank)
            window.wait_signal(1 - comm.rank)

        comm.barrier()
        times_of_signal = [seconds_of(there_and_back, MOST_CALLS) for _ in range(rounds)]
        found.append(("signal", statistics.median(times_of_signal) / 2, 0.0))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.window", __doc__ or "")
    parser.add_argument("--rounds", type=parse_positive, default=41, help="default: 41")
    given = parser.parse_args(argv)
    importable = import_module("benchmarks.window")  # in the ranks; this module may be `__main__`
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    found = hccl_py.spawn(importable.measure, (given.rounds,), nproc=2, env=env)[0]
    rows = [["bytes", "put, us", "copy, us", "put, GB/s", "of the copy"]]
    for size, put, copy in found:
        row = [size, f"{put * 1e6:.3g}", "", "", ""]
        if copy:
            rate = f"{int(size) / put / 1e9:.3g}", f"{100 * copy / put:.0f} %"
            row[2:] = f"{copy * 1e6:.3g}", *rate
        rows.append(row)
    print("\n".join(lay_out(rows, markdown=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
