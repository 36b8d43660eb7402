"""Jobs that end badly while every rank is inside a collective."""

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import launch

SHRINKS = """
import os, signal
import numpy as np
from hccl_py import Communicator, CommunicatorError
comm = Communicator()
data = np.ones(10, np.float32)
comm.all_reduce(data)
if comm.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.all_reduce(data)
except CommunicatorError as error:
    comm = comm.shrink(exclude=[error.rank])
data.fill(1)
comm.all_reduce(data)
os.write(1, f"sum {data[0]}\\n".encode())
comm.close()
"""


def test_ranks_that_shrink_go_on_while_enough_are_left(script: Callable[[str], Path]) -> None:
    done = launch("--nnodes", 2, "--nproc", 2, "--min-ranks", 3, script(SHRINKS))
    assert done.returncode == 0, done.stderr
    assert done.stdout == 3 * "sum 3.0\n"
    assert "killed by SIGKILL; 3 of 4 ranks continue (--min-ranks 3)" in done.stderr
    assert "hccl-launch: after rank 0 failed: the other ranks ended well" in done.stderr


FAILS_ONCE = """
import os, pathlib
import torch, torch.distributed as dist
marker = pathlib.Path(__file__).with_name("failed-once")
first = not marker.exists()
dist.init_process_group("hccl")
data = torch.ones(10)
dist.all_reduce(data)
if first and dist.get_rank() == 1:
    marker.touch()
    raise ValueError("no such image")
try:
    dist.all_reduce(data)
    os.write(1, f"{dist.get_rank()} {data[0]}\\n".encode())
except RuntimeError as error:
    os.write(1, f"{error.cause}: {error}\\n".encode())
    raise
dist.destroy_process_group()
"""


@pytest.mark.nightly("faults")
def test_exception_that_nobody_catches_is_told_to_the_others_and_a_restart_meets_anew(
    script: Callable[[str], Path],
) -> None:
    path = script(FAILS_ONCE)
    done = launch("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1, path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 failed (node 1" in done.stderr
    assert "\nValueError: no such image\n" in done.stderr
    told, *sums = done.stdout.splitlines()
    assert "failed: uncaught ValueError: no such image" in told
    assert sorted(sums) == ["0 4.0", "1 4.0"]
