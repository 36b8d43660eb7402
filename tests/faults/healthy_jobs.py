"""Many short healthy jobs on a loaded machine; prints what their ranks log, which must be nothing.

    python tests/faults/healthy_jobs.py 60

A job is 4 forked ranks on one node or two. They connect, make a subgroup, and close at once: the
coordinator gets connections that end before it has read their messages.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
from torch.distributed import FileStore  # type: ignore[attr-defined]

from hccl_py import Communicator

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


def main(num_jobs: int) -> int:
    """Run the jobs, and return how many failed or logged anything."""
    spinners = []
    for _ in range(SPINNERS):
        pid = os.fork()
        while pid == 0:
            pass
        spinners.append(pid)
    num_bad = 0
    try:
        with tempfile.TemporaryDirectory() as base:
            started: list[tuple[Path, list[int]]] = []
            for job in range(num_jobs + AT_ONCE):
                if job < num_jobs:
                    folder = Path(base, str(job))
                    folder.mkdir()
                    started.append((folder, start_job(folder, 1 + job % 2)))
                if job >= AT_ONCE:
                    folder, pids = started.pop(0)
                    codes = [os.waitpid(pid, 0)[1] for pid in pids]
                    text = (folder / "log").read_text()
                    num_bad += bool(text or any(codes))
                    print(text, end="")
    finally:
        for pid in spinners:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    print(f"{num_jobs} jobs, {num_bad} failed or logged something")
    return num_bad


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
