"""What the reader makes of environments: recorded ones, and such that contradict each other.

The files in `recorded/` hold the variables that real launchers set, as `env` printed them; those of
operators, clouds and batch systems are as their sources and documentation give them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hccl_py import InvalidArgumentError
from hccl_py.schedulers import table
from hccl_py.schedulers.reader import read
from hccl_py.schedulers.scheduled import Task
from hccl_py.torch_backend import _STARTED_BY

RECORDED = Path(__file__).with_name("recorded")

NODE_OPTIONS = "--nnodes N --node-rank I --master-addr HOST on each node"

EXPECTED: dict[str, dict[str, Any]] = {
    "open_mpi": dict(
        source="Open MPI",
        task=Task.RANK,
        rank=3,
        world_size=4,
        local_rank=3,
        local_world_size=4,
        node_rank=None,
    ),
    "mpich": dict(
        source="MPICH",
        task=Task.RANK,
        rank=3,
        world_size=4,
        local_rank=3,
        local_world_size=4,
        node_rank=None,
    ),
    "intel_mpi": dict(source="Intel MPI", rank=3, world_size=4, local_rank=3, local_world_size=4),
    "mpich_two_hosts": dict(rank=3, world_size=4, local_rank=1, local_world_size=2),
    "mpich_alone_on_its_node": dict(rank=1, world_size=2, node_rank=1, num_nodes=2),
    "slurm_step": dict(
        task=Task.RANK,
        rank=3,
        world_size=5,
        local_rank=0,
        local_world_size=1,
        node_rank=1,
        num_nodes=3,
        job_id="1.0",
        nodes=("127.0.0.1", "127.0.0.2", "127.0.0.3"),
    ),
    "slurm_batch_script": dict(
        task=Task.NONE,
        rank=None,
        node_rank=None,
        num_nodes=2,
        nodes=("127.0.0.1", "127.0.0.2"),
    ),
    "slurm_salloc": dict(task=Task.NONE, rank=None, num_nodes=2),
    "slurm_pty": dict(task=Task.NONE, rank=None, num_nodes=2, nodes=("a1", "a2")),
    "slurm_step_in_pty": dict(task=Task.RANK, rank=3, world_size=4, local_world_size=2),
    "slurm_mpich": dict(source="MPICH", rank=1, world_size=2),
    "torchrun": dict(
        source="torchrun",
        task=Task.RANK,
        rank=1,
        world_size=2,
        local_rank=1,
        node_rank=0,
        num_nodes=1,
        master_addr="localhost",
    ),
    "torchrun_in_slurm_step": dict(source="torchrun", rank=3, world_size=4, node_rank=1),
    "pytorchjob": dict(
        source="PyTorchJob",
        task=Task.NODE,
        rank=None,
        node_rank=2,
        num_nodes=3,
        local_world_size=4,
        master_addr="mnist-master-0",
        master_port=23456,
    ),
    "pytorchjob_of_2022": dict(node_rank=2, num_nodes=3, local_world_size=None),
    "pytorchjob_elastic": dict(source="PyTorchJob", node_rank=0, num_nodes=None),
    "trainjob": dict(
        source="TrainJob",
        task=Task.NODE,
        node_rank=1,
        num_nodes=2,
        local_world_size=None,
        master_addr="mnist-node-0-0.mnist",
        master_port=29400,
    ),
    "indexed_job": dict(
        source="indexed Job",
        node_rank=1,
        num_nodes=2,
        local_world_size=4,
        master_addr="train-0.train",
        master_port=29500,
    ),
    "jobset": dict(source="JobSet", node_rank=3, master_addr="train-workers-0-0.train"),
    "aws_batch_child": dict(
        source="AWS Batch",
        task=Task.NODE,
        node_rank=1,
        num_nodes=3,
        master_addr="10.0.0.11",
        is_node_0=False,
    ),
    "aws_batch_main": dict(node_rank=0, num_nodes=3, master_addr=None, is_node_0=True),
    "sagemaker": dict(
        source="SageMaker", task=Task.NODE, node_rank=1, num_nodes=2, master_addr="algo-1"
    ),
    "volcano": dict(
        source="Volcano",
        task=Task.NODE,
        node_rank=1,
        num_nodes=2,
        master_addr="train-worker-0.train",
        is_pod=True,
    ),
    "volcano_two_tasks": dict(task=Task.NONE, options=NODE_OPTIONS),
    "volcano_pytorch_plugin": dict(node_rank=1, num_nodes=3, master_addr="train-master-0.train"),
    "leader_worker_set": dict(
        source="LeaderWorkerSet",
        task=Task.NODE,
        node_rank=3,
        num_nodes=4,
        master_addr="serve-0.serve.default",
        is_pod=True,
    ),
    "skypilot": dict(
        source="SkyPilot", task=Task.NODE, node_rank=1, num_nodes=2, master_addr="10.0.0.4"
    ),
    "dstack": dict(source="dstack", node_rank=1, num_nodes=2, master_addr="10.0.0.4"),
    "flux": dict(source="Flux", rank=3, world_size=4, local_rank=1),
    "flux_alone_on_its_node": dict(rank=1, world_size=2, node_rank=1, local_world_size=1),
    "flux_batch_script": dict(source="Flux", task=Task.NONE, num_nodes=2, options=NODE_OPTIONS),
    "slurm_in_part": dict(source="Slurm", task=Task.NONE, num_nodes=2),
    "vertex_ai": dict(
        source="Vertex AI",
        task=Task.NODE,
        node_rank=2,
        num_nodes=3,
        master_addr="cmle-training-workerpool0-ab-0",
    ),
    "tf_config": dict(source="Vertex AI", node_rank=1, num_nodes=3, master_addr="c-0"),
    "lsf": dict(
        source="LSF",
        task=Task.NONE,
        node_rank=None,
        num_nodes=2,
        options="--hostfile $LSB_DJOB_HOSTFILE",
    ),
    "lsf_blaunch": dict(
        task=Task.NONE,
        options="--nnodes 2 --node-rank $((LSF_PM_TASKID - 1)) --master-addr HOST on each node",
    ),
    "pbs_other_host": dict(
        source="PBS", task=Task.NONE, num_nodes=None, options="--hostfile $PBS_NODEFILE"
    ),
    "grid_engine": dict(source="Grid Engine", task=Task.NONE, num_nodes=2),
    "oar": dict(source="OAR", task=Task.NONE, options="--hostfile $OAR_NODEFILE"),
    "cobalt": dict(source="Cobalt", task=Task.NONE, options="--hostfile $COBALT_NODEFILE"),
    "azure_batch": dict(task=Task.NONE, num_nodes=2, options="--hosts $AZ_BATCH_HOST_LIST"),
    "htcondor": dict(source="HTCondor", task=Task.NONE, num_nodes=3),
    "lightning": dict(
        source="Lightning",
        task=Task.NODE,
        node_rank=1,
        world_size=8,
        local_rank=None,
        master_addr="10.0.0.1",
    ),
}


def recorded(name: str) -> dict[str, str]:
    lines = (RECORDED / f"{name}.env").read_text().splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_every_recorded_environment_is_expected() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_environment_is_read(name: str) -> None:
    found = read(recorded(name))
    assert found is not None
    assert {key: getattr(found, key) for key in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("row", [*table.NODES, *table.ALLOCATIONS], ids=lambda row: row.source)
def test_torch_is_prepared_for_every_row_and_rows_have_an_environment(row: table.Row) -> None:
    assert set(row.marker.split()) <= set(_STARTED_BY)
    assert row.source in {found.source for name in EXPECTED if (found := read(recorded(name)))}


@pytest.mark.parametrize(
    ("source", "variable", "text"),
    [
        ("PBS_JOBID", "PBS_NODEFILE", "{}\n{}\n"),
        ("LSB_JOBID", "LSB_DJOB_HOSTFILE", "{}\n{}\n"),
        ("PE_HOSTFILE", "PE_HOSTFILE", "{} 8 all.q@x UNDEFINED\n{} 8 all.q@y UNDEFINED\n"),
    ],
)
def test_allocation_is_read_from_its_file_and_one_node_needs_no_scheduler(
    tmp_path: Path, source: str, variable: str, text: str
) -> None:
    path = tmp_path / "nodes"
    environ = {source: "7", variable: str(path)}
    path.write_text(text.format("a", "b"))
    found = read(environ)
    assert found is not None
    assert (found.task, found.nodes, found.num_nodes) == (Task.NONE, ("a", "b"), 2)
    path.write_text(text.format("a", "a"))
    assert read(environ) is None


def test_program_that_srun_starts_with_a_terminal_is_the_task_itself() -> None:
    found = read({**recorded("slurm_pty"), "SLURM_TASK_PID": str(os.getpid())})
    assert found is not None
    assert found.task is Task.RANK


TAKES_TERMINAL = (
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY); print(flush=True); input()"
)


def test_single_task_with_a_terminal_is_a_shell_and_one_without_is_a_rank() -> None:
    """`srun -n 1` from the shell of `srun --pty` inherits SLURM_PTY_PORT."""
    leader, follower = os.openpty()
    for program, stdin, task in (
        (TAKES_TERMINAL, follower, Task.NONE),
        ("print(flush=True); input()", subprocess.PIPE, Task.RANK),
    ):
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=stdin,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            found = read({**recorded("slurm_pty"), "SLURM_TASK_PID": str(process.pid)})
            process.kill()
        assert found is not None
        assert found.task is task
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize("name", EXPECTED)
def test_torch_is_prepared_for_every_environment_without_rank(name: str) -> None:
    environ = recorded(name)
    assert "RANK" in environ or any(each in environ for each in _STARTED_BY)


def test_environment_without_a_scheduler_says_nothing() -> None:
    assert read({"PATH": "/bin", "MASTER_ADDR": "a", "WORLD_SIZE": "2", "PMI_RANK": ""}) is None


def test_one_line_says_what_was_read_from_where() -> None:
    assert str(read(recorded("mpich_two_hosts"))) == (
        "rank 3 of 4, local rank 1 of 2 "
        "(MPICH: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS)"
    )


SLURM = dict(
    SLURM_JOB_ID="7",
    SLURM_STEP_ID="0",
    SLURM_PROCID="3",
    SLURM_STEP_NUM_TASKS="4",
    SLURM_NODEID="1",
    SLURM_STEP_NUM_NODES="2",
)
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", **SLURM}, "RANK=1 .* and SLURM_PROCID=3"),
        ({"RANK": "1", **SLURM}, "RANK=1 .* and SLURM_PROCID=3"),
        ({"RANK": "1", "WORLD_SIZE": "4", **OPEN_MPI}, "RANK=1 .* and OMPI_COMM_WORLD_RANK=2"),
        ({"NODE_RANK": "0", **SLURM}, "SLURM_NODEID=1 .* and NODE_RANK=0"),
        (
            {"NODE_RANK": "1", "JOB_COMPLETION_INDEX": "0"},
            "JOB_COMPLETION_INDEX=0 .* and NODE_RANK=1",
        ),
        (
            {"PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "0"},
            "PET_NODE_RANK=1 .* and JOB_COMPLETION_INDEX=0",
        ),
    ],
)
def test_contradiction_names_both_variables(environ: dict[str, str], names: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{names} .*: unset "):
        read(environ)


@pytest.mark.parametrize(
    ("environ", "source", "rank"),
    [
        # One torchrun a node, each a process of srun: they number different things.
        ({"RANK": "3", "WORLD_SIZE": "8", **SLURM}, "set by hand", 3),
        # A rank that a launcher started inside a step, whose size happens to be the same.
        ({"RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "0", **SLURM}, "torchrun", 1),
        # mpirun starts its daemons with srun.
        ({**OPEN_MPI, **SLURM}, "Open MPI", 2),
        ({"RANK": "3", "WORLD_SIZE": "4", **SLURM}, "set by hand", 3),
        # In a process that pbsdsh started, or that has several lists of hosts.
        ({"NODE_RANK": "1", "PBS_JOBID": "7"}, "Lightning", None),
        ({"NODE_RANK": "1", "VC_TASK_INDEX": "0"}, "Lightning", None),
        ({"RANK": "1", "LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 1 b 1"}, "set by hand", 1),
        ({**OPEN_MPI, "PBS_JOBID": "7"}, "Open MPI", 2),
    ],
)
def test_innermost_of_nested_sources_wins(
    environ: dict[str, str], source: str, rank: int | None
) -> None:
    found = read(environ)
    assert found is not None
    assert (found.source, found.rank) == (source, rank)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**SLURM, "SLURM_PROCID": "three"}, "SLURM_PROCID: expected a number, got 'three'"),
        (
            {**SLURM, "SLURM_PROCID": "4"},
            r"SLURM_PROCID \(Slurm step 7.0\): expected 0 to 3, as SLURM_STEP_NUM_TASKS is 4",
        ),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[1-"}, r"SLURM_STEP_NODELIST: .* got 'a\[1-'"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE: .* got 'x'"),
        ({"JOB_COMPLETION_INDEX": "0", "JOB_INDEX": "1"}, "JOB_INDEX=1: .* set PET_NODE_RANK"),
        ({"AWS_BATCH_JOB_NODE_INDEX": "2", "AWS_BATCH_JOB_NUM_NODES": "2"}, "expected 0 to 1"),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "9" * 20}, "SLURM_STEP_NUM_NODES .* at most, got 9"),
        ({"AWS_BATCH_JOB_NODE_INDEX": "x"}, "AWS_BATCH_JOB_NODE_INDEX: expected a number"),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "SM_HOSTS: .* SM_CURRENT_HOST=b"),
        ({"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "b"}, "SM_HOSTS: expected a list"),
        ({"LWS_WORKER_INDEX": "4", "LWS_GROUP_SIZE": "4"}, r"LWS_WORKER_INDEX .*: expected 0 to 3"),
        ({"VC_TASK_INDEX": "2", "VC_A_HOSTS": "a,b"}, "expected 0 to 1"),
    ],
)
def test_value_that_makes_no_sense_is_named(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        read(environ)
