"""How groups are made: what is said once in a job, and what their options choose."""

import sys
from pathlib import Path

import pytest
from launching import launch, run
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


OPTIONS = """
import torch.distributed as dist
alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("hccl", pg_options={"wait": "idle"}, **alone)
for options in (None, {"wait": "spin"}, {}, {"wait": "often"}):
    print(dist.group.WORLD.communicator.wait, dist.new_group(pg_options=options).communicator.wait)
"""


def test_options_of_a_group_choose_how_its_rank_waits() -> None:
    done = run(sys.executable, "-c", OPTIONS)
    assert done.stdout.splitlines() == ["idle balanced", "idle spin", "idle balanced"]
    expected = "wait: expected spin or balanced or idle, got 'often'"
    assert expected in done.stderr.splitlines()[-1]


WAITS = """
import time, torch.distributed as dist
dist.init_process_group("hccl")
for way in ("spin", "idle"):
    group = dist.new_group(pg_options={"wait": way})
    dist.barrier(group)
    before = group.communicator.statistics()["sleeps"]
    for _ in range(50):
        if dist.get_rank() == 1:
            time.sleep(1e-3)  # rank 0 waits
        dist.barrier(group)
    if dist.get_rank() == 0:
        print(way, group.communicator.statistics()["sleeps"] - before)
dist.destroy_process_group()
"""


def test_groups_of_one_job_wait_each_in_its_own_way(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITS)
    done = launch("--nproc", 2, program)
    assert done.returncode == 0, done.stderr
    slept = dict(line.split()[-2:] for line in done.stdout.splitlines())
    assert int(slept["spin"]) == 0
    assert int(slept["idle"]) >= 25  # of 50 waits: a rank may find the other there
