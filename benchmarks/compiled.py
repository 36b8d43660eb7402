"""Times a step with four small all_reduces: eager, compiled, and compiled by torch's own operators.

    python -m benchmarks.compiled --rounds 41

The step is four layers of a small perceptron of which each rank has a part. A round measures each
way in turns, from a barrier on; the figures are medians of the rounds on rank 0, and the
fastest round. The step without all_reduces tells what compiling it gains. HCCL_NATIVE_BACKEND=1
measures hccl as a backend of torch's own group. `--real-time` keeps other programs off the cores
while the ranks measure; it needs root.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import hccl_py
from benchmarks.harness import parser_of_command
from hccl_py.bench.collective.output.text import lay_out
from hccl_py.command_line import parse_positive

NUM_LAYERS, ROWS, WIDTH = 4, 4, 64
CALLS_A_ROUND, CALLS_TO_WARM_UP = 30, 20


def steps() -> dict[str, Callable[[Any], Any]]:
    """Return the ways to make a step, by name."""
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch._inductor import config

    config.compile_threads = 1  # a pool of compiling processes would share the ranks' cores
    functional: Any = dist._functional_collectives
    weights = [[torch.randn(WIDTH, WIDTH) / 8 for _ in range(2)] for _ in range(NUM_LAYERS)]

    def step(reduce: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for up, down in weights:
                hidden = torch.nn.functional.layer_norm(x, (WIDTH,))
                hidden = torch.nn.functional.gelu(hidden @ up, approximate="tanh") @ down
                reduce(hidden)
                x = x + hidden * 0.5
            return x

        return run

    def torchs_own(tensor: Tensor) -> None:
        functional.all_reduce_inplace(tensor, "sum", dist.group.WORLD)

    def nothing(_: Tensor) -> None:
        pass

    return {
        "eager": step(dist.all_reduce),
        "compiled": torch.compile(step(dist.all_reduce), fullgraph=True),
        "compiled, torch's operators": torch.compile(step(torchs_own), fullgraph=True),
        "eager, no all_reduce": step(nothing),
        "compiled, no all_reduce": torch.compile(step(nothing), fullgraph=True),
    }


def measure(rounds: int, real_time: bool) -> dict[str, list[float]]:
    """Return the seconds of a step by the ways to make it, one figure a round."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("hccl")
    x, ways = torch.randn(ROWS, WIDTH), steps()
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for way in ways.values():
            for _ in range(CALLS_TO_WARM_UP):
                way(x)
        for thread in os.listdir("/proc/self/task") if real_time else ():
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(10))
        for _ in range(rounds):
            for name, way in ways.items():
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(CALLS_A_ROUND):
                    way(x)
                times[name].append((time.perf_counter() - begin) / CALLS_A_ROUND)
    dist.destroy_process_group()
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.compiled", __doc__ or "")
    parser.add_argument("--rounds", type=parse_positive, default=41, help="default: 41")
    parser.add_argument("-g", type=parse_positive, default=2, help="number of ranks; default: 2")
    parser.add_argument("--real-time", action="store_true", help="at real-time priority")
    given = parser.parse_args(argv)
    importable = import_module("benchmarks.compiled")  # in the ranks; this module may be `__main__`
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    arguments = given.rounds, given.real_time
    found = hccl_py.spawn(importable.measure, arguments, nproc=given.g, env=env)[0]
    eager = statistics.median(found["eager"])
    rows = [["step", "us", "fastest, us", "of eager"]]
    for name, times in found.items():
        median = statistics.median(times)
        share = "" if name.endswith("no all_reduce") else f"{100 * median / eager:.0f} %"
        rows.append([name, f"{median * 1e6:.0f}", f"{min(times) * 1e6:.0f}", share])
    print("\n".join(lay_out(rows, markdown=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
