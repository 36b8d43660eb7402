"""hccl-launch under the real srun and sbatch: a process per node, a process per rank, a script."""

import shlex
import subprocess
from pathlib import Path

import pytest
from launching import COMMAND

LIMIT_S = 90.0
SCRIPT = """
import os
import torch, torch.distributed as dist
dist.init_process_group("hccl")
data = torch.ones(10)
dist.all_reduce(data)
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
os.write(1, (" ".join(os.environ[name] for name in names) + f" {int(data[0])}\\n").encode())
dist.destroy_process_group()
"""
TWO_BY_TWO = ["0 0 0 4 4", "1 1 0 4 4", "2 0 1 4 4", "3 1 1 4 4"]

pytestmark = pytest.mark.nightly("launchers")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(("per_node", "options"), [("1", ["--nproc", "2"]), ("2", [])])
def test_process_per_node_or_rank(
    slurm: dict[str, str], script: Path, per_node: str, options: list[str]
) -> None:
    words = ["srun", "-N", "2", "--ntasks-per-node", per_node, *COMMAND, *options, str(script)]
    done = run(words, slurm)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == TWO_BY_TWO


def test_batch_script_starts_every_node(
    slurm: dict[str, str], script: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    wrapped = shlex.join([*COMMAND, "--nproc", "2", str(script)])
    done = run(["sbatch", "--wait", "-N", "2", "-o", str(out), "--wrap", wrapped], slurm)
    printed = out.read_text()
    assert done.returncode == 0, printed
    lines = [line for line in printed.splitlines() if line[:1].isdigit()]
    assert sorted(lines) == TWO_BY_TWO


def test_printed_batch_script_runs(slurm: dict[str, str], script: Path, tmp_path: Path) -> None:
    words = ["--print-sbatch", "--nnodes", "2", "--nproc", "2", str(script)]
    printed = run([*COMMAND, *words], slurm)
    assert printed.returncode == 0, printed.stderr
    batch, out = tmp_path / "job.sbatch", tmp_path / "out"
    batch.write_text(printed.stdout)
    done = run(["sbatch", "--wait", "-o", str(out), str(batch)], slurm)
    assert done.returncode == 0, done.stderr + out.read_text()
    lines = [line for line in out.read_text().splitlines() if line[:1].isdigit()]
    assert sorted(lines) == TWO_BY_TWO


def test_nnodes_that_contradicts_slurm_is_an_error(slurm: dict[str, str], script: Path) -> None:
    words = ["srun", "-N", "2", "--ntasks-per-node", "1", *COMMAND, "--nnodes", "3", str(script)]
    done = run(words, slurm)
    assert done.returncode == 2
    assert "--nnodes 3: Slurm step" in done.stderr
    assert "has 2 nodes" in done.stderr
