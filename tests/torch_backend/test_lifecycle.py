"""What is said once in a job when its groups are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import launch
from tiers import by_night

PROGRAM = """
import torch, torch.distributed as dist
torch.__version__ = {version!r}
dist.init_process_group("hccl")
dist.new_group([0])
dist.new_group([1])
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("version", "count"), [("2.77.0a1+cpu", 1), *by_night("calls", ("2.13.1+cpu", 0))]
)
def test_untested_torch_is_one_line_of_a_job(version: str, count: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(version=version))
    done = launch("--nproc", 2, program)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "was not tested" in line]
    assert len(lines) == count and all(version in line for line in lines)
