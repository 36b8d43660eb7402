"""The exception that `torch.multiprocessing.spawn` catches of a rank: the others name it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing

def work(rank, folder):
    dist.init_process_group("hccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        raise ValueError("bad batch")
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        with open(f"{folder}/told", "w") as file:
            file.write(str(error))

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""


def test_exception_of_a_spawned_rank_is_told_to_the_others(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "ValueError: bad batch" in ended.stderr
    assert "uncaught ValueError: bad batch" in (tmp_path / "told").read_text()
