"""Plain programs under the real mpirun of Open MPI, MPICH and Intel MPI."""

import sys
from pathlib import Path

import namespaces
import pytest
from mpi_wheels import ENVIRONMENT, OPTIONS, mpirun
from namespaces import Hosts
from quiet_clock import HANG_S
from scheduled_program import ORDERS, command, expected, lines_of, run
from wheels import installed

PORT = Path(__file__).parents[2] / "examples" / "07_from_mpi4py.py"

pytestmark = [
    pytest.mark.nightly("launchers"),
    pytest.mark.parametrize("wheel", OPTIONS),
]


def words(wheel: str, num_ranks: int, *more: str) -> list[str]:
    return [mpirun(wheel), *OPTIONS[wheel], "-n", str(num_ranks), *more]


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_of_mpirun_find_each_other(wheel: str, order: str) -> None:
    job = run([*words(wheel, 4), *command(order)], ENVIRONMENT)
    assert lines_of(job) == expected(4, 4)


def test_one_rank_needs_no_other(wheel: str) -> None:
    assert lines_of(run([*words(wheel, 1), *command()], ENVIRONMENT)) == expected(1, 1)


def test_two_jobs_at_once_do_not_meet(wheel: str) -> None:
    jobs = [run([*words(wheel, size), *command()], ENVIRONMENT) for size in (2, 3)]
    assert [lines_of(job) for job in jobs] == [expected(2, 2), expected(3, 3)]


REMOTE_OPTIONS = {
    "openmpi": "--prtemca plm_ssh_agent {shell} --host {a}:2,{b}:2",
    "mpich": "-launcher ssh -launcher-exec {shell} -hosts {a},{b} -ppn 2",
    "impi-rt": "-bootstrap ssh -bootstrap-exec {shell} -hosts {a},{b} -ppn 2",
}


def test_ranks_on_two_hosts_meet_at_the_address_of_rank_0(wheel: str, tmp_path: Path) -> None:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with Hosts() as hosts:
        shell = tmp_path / "shell"
        shell.write_text(hosts.remote_shell())
        shell.chmod(0o755)
        places = {"shell": shell, "a": hosts.address(0), "b": hosts.address(1)}
        options = REMOTE_OPTIONS[wheel].format(**places).split()
        job = run(hosts.command(0, mpirun(wheel), *options, "-n", "4", *command()), ENVIRONMENT)
        assert lines_of(job) == expected(4, 2)


def test_exit_code_of_a_rank_is_that_of_mpirun(wheel: str) -> None:
    program = "from hccl_py import Communicator; raise SystemExit(7 * Communicator().rank)"
    job = run([*words(wheel, 2), sys.executable, "-c", program], ENVIRONMENT)
    out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == 7, out + err


def test_port_from_mpi4py_has_the_results_of_mpi(wheel: str) -> None:
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    library = next(installed(wheel, "lib").glob("lib/libmpi.so*"))
    own = {
        "PYTHONPATH": str(installed("mpi4py", f"{site}/mpi4py") / site),
        "MPI4PY_LIBMPI": str(library),
    }
    job = run([*words(wheel, 3), sys.executable, str(PORT)], {**ENVIRONMENT, **own})
    agreed = [f"{rank} of 3: hccl and MPI agree" for rank in range(3)]
    assert lines_of(job) == agreed
