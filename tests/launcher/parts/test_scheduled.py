"""What hccl-launch does in the processes of schedulers that have a row in the table."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from launching import COMMAND, dry_run, job, launch
from quiet_clock import HANG_S

SCRIPT = """
import os
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""
MAIN = {
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
}
CHILD = {
    **MAIN,
    "AWS_BATCH_JOB_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1",
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_nodes_of_aws_batch_make_one_world(port: int, script: Path) -> None:
    """The main node is not told the address at which the others look for it."""
    with ExitStack() as opened:
        nodes = [
            opened.enter_context(
                job(*_with(environ), *COMMAND, "--nproc", 2, "--master-port", port, script)
            )
            for environ in (MAIN, CHILD)
        ]
        outputs = [node.communicate(timeout=HANG_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert sorted(outputs[0][0].splitlines()) == ["0 0 0 4", "1 1 0 4"]
    assert sorted(outputs[1][0].splitlines()) == ["2 0 1 4", "3 1 1 4"]


def _with(environ: dict[str, str]) -> tuple[str, ...]:
    return "env", *(f"{name}={value}" for name, value in environ.items())


@pytest.mark.parametrize("how", [(), ("--dry-run",), ("--nnodes", "2")])
def test_one_of_several_nodes_is_refused_with_the_options_to_give(
    how: tuple[str, ...], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("a\nb\n")
    monkeypatch.setenv("PBS_JOBID", "7")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    done = launch("--nproc", 2, *how, script)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "PBS" in line
    assert "--hostfile $PBS_NODEFILE" in line


SAY_TOO_LITTLE = (
    "FLUX_JOB_NNODES=2",
    "FLUX_URI=local:///run/flux/local",
    "SKYPILOT_NUM_NODES=2",
    "SKYPILOT_NODE_RANK=1",
    "AWS_BATCH_JOB_NUM_NODES=2",
    "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2",
    "SLURM_NNODES=2",
    "DSTACK_NODES_NUM=2",
)
ASK_MORE = (
    "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1",
    "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=a,b PATH=/no/srun",
)
"""What only the start itself needs to know."""


@pytest.mark.parametrize(
    ("ask", "variables"), [*product([dry_run], SAY_TOO_LITTLE), *product([launch], ASK_MORE)]
)
def test_scheduler_that_says_too_little_is_refused_with_the_options_of_a_node(
    ask: Callable[..., Any], variables: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("=", 1))
    done = ask(script)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    for option in ("--nnodes", "--node-rank", "--master-addr"):
        assert option in done.stderr


@pytest.mark.parametrize("variable", ["FLUX_JOB_NNODES=1", "SKYPILOT_NUM_NODES=1"])
def test_only_node_of_a_scheduler_is_a_world(
    variable: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    assert launch(script).stdout == "0 0 0 1\n"


@pytest.mark.parametrize("how", [("--standalone",), ("--nnodes", "1"), ("--node-rank", "0")])
def test_option_that_says_which_nodes_there_are_counts(
    how: tuple[str, ...], port: int, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "7")  # its file of nodes is on another host
    done = launch(*how, "--master-port", port, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 0 0 1\n"


def test_shell_of_srun_is_a_place_to_start_nodes_from(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun is replaced by a program that prints how it was called."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$SLURM_OVERLAP $@"\n')
    (tmp_path / "srun").chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_PTY_PORT": "34889",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = launch("--nproc", 2, script)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("hccl_launch_*")) == [], "srun never comes back to remove it"
    assert done.stdout.startswith("1 --nodes=2 --ntasks=2 --ntasks-per-node=1 ")
