"""A healthy job logs nothing, however loaded the machine is.

A job is 4 forked ranks on one node or two. They connect, make a subgroup, and close at once: the
coordinator gets connections that end before it has read their messages.
"""

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks
from torch.distributed import FileStore  # type: ignore[attr-defined]

from hccl_py import Communicator

NUM_JOBS = 120
RANKS = 4
AT_ONCE = 6
SPINNERS = 3


def run_rank(folder: Path, rank: int, num_nodes: int) -> None:
    output = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, sys.stderr.fileno())
    os.environ["HCCL_NODE_ID"] = str(rank * num_nodes // RANKS)
    try:
        world = Communicator(FileStore(str(folder / "store"), RANKS), rank, RANKS, timeout_s=60)
        if rank % 2:
            world.all_reduce(np.ones(10, np.float32))
        else:
            world.nonblocking.all_reduce(np.ones(10, np.float32)).wait()
        if rank < 2:
            world.subset([0, 1], "pair").close()
        world.close()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)


def start_job(folder: Path, num_nodes: int) -> list[int]:
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            run_rank(folder, rank, num_nodes)
        pids.append(pid)
    return pids


def run_jobs(_rank: int, _size: int, base: Path) -> list[str]:
    """Run all jobs beside spinning processes; return what was logged, by jobs that failed too."""
    spinners = []
    for _ in range(SPINNERS):
        pid = os.fork()
        while pid == 0:
            pass
        spinners.append(pid)
    started: list[tuple[Path, list[int]]] = []
    texts = []
    try:
        for job in range(NUM_JOBS + AT_ONCE):
            if job < NUM_JOBS:
                folder = base / str(job)
                folder.mkdir()
                started.append((folder, start_job(folder, 1 + job % 2)))
            if job >= AT_ONCE:
                folder, pids = started.pop(0)
                codes = [os.waitpid(pid, 0)[1] for pid in pids]
                texts.append((folder / "log").read_text() or ("failed" if any(codes) else ""))
    finally:
        for pid in spinners:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return texts


@pytest.mark.nightly("faults")
def test_healthy_jobs_on_a_loaded_machine_log_nothing(tmp_path: Path) -> None:
    assert run_ranks(run_jobs, 1, tmp_path, timeout_s=240) == [[""] * NUM_JOBS]
