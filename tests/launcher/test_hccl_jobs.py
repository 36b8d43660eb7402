"""Jobs that end badly while every rank is inside a collective."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import COMMAND, job, launch
from quiet_clock import HANG_S
from tiers import by_night

TWO_BY_TWO = ("--nnodes", 2, "--nproc-per-node", 2)
# Ends by itself after some minutes at most: a test that fails to stop it should not run for ever.
ALL_REDUCE_ON_AND_ON = """
import os, signal, sys
import numpy as np
from hccl_py import Communicator
comm = Communicator()
data = np.ones(100_000, np.float32)
for step in range(1_000_000):
    comm.all_reduce(data)
    data.fill(1.0)
    {at_each_step}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_killed_rank_is_blamed_and_the_job_ends(path: Path) -> None:
    kill = "step == 50 and comm.rank == 2 and os.kill(os.getpid(), signal.SIGKILL)"
    path.write_text(ALL_REDUCE_ON_AND_ON.format(at_each_step=kill))
    done = launch(*TWO_BY_TWO, path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "hccl-launch: rank 2 of 4 was killed by SIGKILL (node 1, local rank 0" in done.stderr


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


@pytest.mark.parametrize("least", [3, *by_night("launchers", 4)])
def test_ranks_that_shrink_go_on_while_enough_are_left(path: Path, least: int) -> None:
    path.write_text(SHRINKS)
    done = launch(*TWO_BY_TWO, "--min-ranks", least, path)
    if least == 4:
        assert done.returncode == 128 + signal.SIGKILL
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout == 3 * "sum 3.0\n"
    assert "killed by SIGKILL; 3 of 4 ranks go on (--min-ranks 3)" in done.stderr
    assert "hccl-launch: after rank 0 failed: the other ranks ended well" in done.stderr


def test_ctrl_c_ends_ranks_inside_a_collective(path: Path) -> None:
    say = "step == 50 and comm.rank == 0 and os.write(1, b'running\\n')"
    path.write_text(ALL_REDUCE_ON_AND_ON.format(at_each_step=say))
    with job(*COMMAND, "--nproc", 2, path) as process:  # orphans are looked for on the way out
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGINT


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
    path: Path,
) -> None:
    path.write_text(FAILS_ONCE)
    done = launch("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1, path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 failed (node 1" in done.stderr
    assert "\nValueError: no such image\n" in done.stderr
    told, *sums = done.stdout.splitlines()
    assert "failed: uncaught ValueError: no such image" in told
    assert sorted(sums) == ["0 4.0", "1 4.0"]
