"""What the reader makes of environments: recorded ones, and such that contradict each other.

The files in `recorded/` hold the variables that real launchers set, as `env` printed them; those of
operators, clouds and batch systems are as their sources and documentation give them.
"""

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

EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "open_mpi": ("rank 3 of 4, local rank 3 of 4 (Open MPI)", {}),
    "mpich": ("rank 3 of 4, local rank 3 of 4 (MPICH)", {}),
    "intel_mpi": ("rank 3 of 4, local rank 3 of 4 (Intel MPI)", {}),
    "mpich_two_hosts": ("rank 3 of 4, local rank 1 of 2 (MPICH)", {}),
    "mpich_alone_on_its_node": ("rank 1 of 2, local rank 0 of 1, node 1 of 2 (MPICH)", {}),
    "slurm_step": (
        "rank 3 of 5, local rank 0 of 1, node 1 of 3 (Slurm step 1.0)",
        dict(job_id="1.0", nodes=("127.0.0.1", "127.0.0.2", "127.0.0.3")),
    ),
    "slurm_batch_script": ("one of 2 nodes (Slurm job 2)", dict(nodes=("127.0.0.1", "127.0.0.2"))),
    "slurm_salloc": ("one of 2 nodes (Slurm job 3)", {}),
    "slurm_pty": ("one of 2 nodes (Slurm job 12)", dict(nodes=("a1", "a2"))),
    "slurm_step_in_pty": ("rank 3 of 4, local rank 1 of 2, node 1 of 2 (Slurm step 12.1)", {}),
    "slurm_mpich": ("rank 1 of 2, local rank 0 of 1, node 1 of 2 (MPICH)", {}),
    "torchrun": (
        "rank 1 of 2, local rank 1 of 2, node 0 of 1 (torchrun)",
        dict(master_addr="localhost"),
    ),
    "torchrun_in_slurm_step": ("rank 3 of 4, local rank 1 of 2, node 1 of 2 (torchrun)", {}),
    "pytorchjob": (
        "one of 4 local ranks, node 2 of 3 (PyTorchJob)",
        dict(master_addr="mnist-master-0", master_port=23456),
    ),
    "pytorchjob_of_2022": ("node 2 of 3 (PyTorchJob)", {}),
    "pytorchjob_elastic": ("node 0 (PyTorchJob)", {}),
    "trainjob": (
        "node 1 of 2 (TrainJob)",
        dict(master_addr="mnist-node-0-0.mnist", master_port=29400),
    ),
    "indexed_job": (
        "one of 4 local ranks, node 1 of 2 (indexed Job)",
        dict(master_addr="train-0.train", master_port=29500),
    ),
    "jobset": ("node 3 (JobSet)", dict(master_addr="train-workers-0-0.train")),
    "aws_batch_child": ("node 1 of 3 (AWS Batch)", dict(master_addr="10.0.0.11", is_node_0=False)),
    "aws_batch_main": ("node 0 of 3 (AWS Batch)", dict(master_addr=None, is_node_0=True)),
    "sagemaker": ("node 1 of 2 (SageMaker)", dict(master_addr="algo-1")),
    "volcano": ("node 1 of 2 (Volcano)", dict(master_addr="train-worker-0.train", is_pod=True)),
    "volcano_two_tasks": ("an allocation (Volcano)", dict(options=NODE_OPTIONS)),
    "volcano_pytorch_plugin": (
        "node 1 of 3 (PyTorchJob)",
        dict(master_addr="train-master-0.train"),
    ),
    "leader_worker_set": (
        "node 3 of 4 (LeaderWorkerSet)",
        dict(master_addr="serve-0.serve.default", is_pod=True),
    ),
    "skypilot": ("node 1 of 2 (SkyPilot)", dict(master_addr="10.0.0.4")),
    "dstack": ("node 1 of 2 (dstack)", dict(master_addr="10.0.0.4")),
    "flux": ("rank 3 of 4, local rank 1 of 2 (Flux)", {}),
    "flux_alone_on_its_node": ("rank 1 of 2, local rank 0 of 1, node 1 of 2 (Flux)", {}),
    "flux_batch_script": ("one of 2 nodes (Flux)", dict(options=NODE_OPTIONS)),
    "slurm_in_part": ("one of 2 nodes (Slurm)", {}),
    "vertex_ai": ("node 2 of 3 (Vertex AI)", dict(master_addr="cmle-training-workerpool0-ab-0")),
    "tf_config": ("node 1 of 3 (Vertex AI)", dict(master_addr="c-0")),
    "lsf": ("one of 2 nodes (LSF)", dict(options="--hostfile $LSB_DJOB_HOSTFILE")),
    "lsf_blaunch": (
        "one of 2 nodes (LSF)",
        dict(
            options="--nnodes 2 --node-rank $((LSF_PM_TASKID - 1)) --master-addr HOST on each node"
        ),
    ),
    "pbs_other_host": ("an allocation (PBS)", dict(options="--hostfile $PBS_NODEFILE")),
    "grid_engine": ("one of 2 nodes (Grid Engine)", {}),
    "oar": ("an allocation (OAR)", dict(options="--hostfile $OAR_NODEFILE")),
    "fujitsu": ("one of 2 nodes (Fujitsu's Job Operation Software)", {}),
    "cobalt": ("an allocation (Cobalt)", dict(options="--hostfile $COBALT_NODEFILE")),
    "azure_batch": ("one of 2 nodes (Azure Batch)", dict(options="--hosts $AZ_BATCH_HOST_LIST")),
    "htcondor": ("one of 3 nodes (HTCondor)", {}),
    "lightning": ("one of 8 ranks, node 1 (Lightning)", dict(master_addr="10.0.0.1")),
}
"""What is said of each, up to the variables, and fields that are not said."""


def recorded(name: str) -> dict[str, str]:
    lines = (RECORDED / f"{name}.env").read_text().splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_every_recorded_environment_is_expected() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_environment_is_read(name: str) -> None:
    found = read(recorded(name))
    assert found is not None
    text, fields = EXPECTED[name]
    assert str(found).replace(", in which nothing was started yet", "").startswith(text[:-1] + ":")
    assert {key: getattr(found, key) for key in fields} == fields
    role = Task.NODE if found.node_rank is not None else Task.NONE
    assert found.task is (role if found.rank is None else Task.RANK)


@pytest.mark.parametrize("row", [*table.NODES, *table.ALLOCATIONS], ids=lambda row: row.source)
def test_torch_is_prepared_for_every_row(row: table.SchedulerRow) -> None:
    assert set(row.marker.split()) <= set(_STARTED_BY)
    assert row.source in {found.source for name in EXPECTED if (found := read(recorded(name)))}


@pytest.mark.parametrize(
    ("source", "variable", "text"),
    [
        ("PBS_JOBID", "PBS_NODEFILE", "{}\n{}\n"),
        ("LSB_JOBID", "LSB_DJOB_HOSTFILE", "{}\n{}\n"),
        ("PJM_JOBID", "PJM_O_NODEINF", "{}\n{}\n"),
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
        ({**OPEN_MPI, "PJM_JOBID": "7", "PJM_NODE": "2"}, "Open MPI", 2),
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
