"""The program that real schedulers start in the tests: plain calls, and one line from each rank."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

# Which of the two calls comes first, and so reads the scheduler's variables.
ORDERS = ("torch", "communicator")
_LIMIT_S = 100.0

_SOURCE = """
import os, sys
import numpy, torch
import torch.distributed as dist
from hccl_py import Communicator

if sys.argv[1] == "torch":
    dist.init_process_group("hccl")
comm = Communicator()
mine = numpy.array([comm.rank + 1.0])
comm.all_reduce(mine)
if not dist.is_initialized():
    dist.init_process_group("hccl")
data = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(data)
found = os.environ
line = [found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]]
os.write(1, " ".join(["rank", *line, str(mine[0]), str(data.item())]).encode() + b"\\n")
dist.destroy_process_group()
comm.close()
"""


def command(order: str = "torch") -> list[str]:
    """Return the words that start the program of one rank."""
    return [sys.executable, "-c", _SOURCE, order]


def run(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a launcher with its programs."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, env=dict(environment), text=True, **streams)


def lines_of(job: subprocess.Popen[str]) -> list[str]:
    """Return the lines of the ranks, sorted; the job has to end well."""
    try:
        out, err = job.communicate(timeout=_LIMIT_S)
    finally:
        job.kill()
    assert job.returncode == 0, out + err
    return sorted(line.removeprefix("rank ") for line in out.splitlines() if line[:5] == "rank ")


def expected(world_size: int, ranks_per_node: int) -> list[str]:
    """Return what the ranks print if they are numbered node by node."""
    total = float(sum(range(world_size + 1)))
    return [
        f"{rank} {world_size} {rank % ranks_per_node} {ranks_per_node} {total} {total}"
        for rank in range(world_size)
    ]
