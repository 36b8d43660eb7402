"""Who takes part, and one fresh start of each."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.ranks import free_ports
from hccl_py.bench.peers.environments import MPIS, UCC, Environments
from hccl_py.bench.peers.processes import ROOT_MAY, StartError, end_of, output_of, run_all

COMMUNICATOR, TORCH = "Communicator", "torch.distributed"
OURS = {COMMUNICATOR: "hccl-py", TORCH: "hccl"}
"""Ways to call us, and our name among those who are called so."""

COPIES = "copies"
"""Takes part where Communicator does, as the limit of all: data that moves without a library."""

_MIN_COPY = 64 << 10
"""Bytes of a rank's block from which on the copies, and not what starts them, take the time."""

_PROGRAM = Path(__file__).with_name("program.py")
_DTYPE = "float32"
_SLICE_S = 3e-3  # UCC never yields: with more ranks than cores, a rank waits for the scheduler
_UCC_TIME = re.compile(r"^ *(?:\d+|N/A) +(?:\d+|N/A) +[\d.]+ +[\d.]+ +([\d.]+) *$", re.MULTILINE)
"""Its row: count, bytes, then average, least and largest time over the ranks."""

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
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
"""What every contender measures."""


@dataclass(frozen=True)
class Start:
    """What one fresh start measures: all sizes of one collective.

    Attributes:
        sizes: bytes of a rank's larger buffer.
        seconds: for all sizes together, without starting.
        calls: of each size; None: as many as the seconds allow.
    """

    op: str
    ranks: int
    sizes: tuple[int, ...]
    seconds: float
    calls: int | None = None

    def counts(self, size: int) -> tuple[int, int]:
        """Elements of a rank's input and output; no output: in place."""
        case = CASES[self.op]
        layout = case.layout(case.count(size, _DTYPE, self.ranks), self.ranks)
        in_place = case.places[0] == "in"
        return layout.input_count, 0 if in_place else layout.output_count


@dataclass(frozen=True)
class Contender:
    """One that takes part; `measure` makes a fresh start and returns an object for each size."""

    name: str
    group: str
    version: str
    measure: Callable[[Start], list[dict[str, Any]]]


def at_home(group: str) -> list[Contender]:
    """Return those that need no environment of their own: ours, the bare copies, and gloo."""
    mine = version("hccl-py")
    if group == COMMUNICATOR:
        measure = functools.partial(_measure_here, "communicator")
        numpy_version = f"of the kernel and numpy {version('numpy')}"
        return [
            Contender(OURS[group], group, mine, measure),
            Contender(COPIES, group, numpy_version, _measure_copies),
        ]
    return [
        Contender(name, group, its_version, functools.partial(_measure_here, f"torch {name}"))
        for name, its_version in (("hccl", mine), ("gloo", f"of torch {version('torch')}"))
    ]


def find(name: str, environments: Environments) -> Contender:
    """Look up a peer that has processes of its own; pip makes its environment if it may.

    Raises:
        StartError: the peer is nowhere, is not what it should be, or pip could not install it.
    """
    missing = environments.lacks(name)
    if missing:
        raise StartError(missing)
    try:
        program = environments.program(name)
    except (OSError, subprocess.CalledProcessError) as error:
        raise StartError(f"pip could not make its environment: {error}") from error
    return _find_ucc(program) if name == UCC else _find_mpi(name, program)


def _find_mpi(name: str, python: Path) -> Contender:
    """Ask an environment for its MPI."""
    mpiexec = python.with_name("mpiexec")
    if not mpiexec.exists():
        raise StartError(f"expected mpiexec beside {python}")
    text = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; import numpy; "
    says = output_of(str(python), "-c", text + "print(MPI.Get_library_version())")
    if not says.startswith(MPIS[name]):
        raise StartError(f"expected {MPIS[name]} from the mpi4py of {python}, got {says[:40]!r}")
    return Contender(
        name, COMMUNICATOR, _version(says), functools.partial(_measure_mpi, mpiexec, python)
    )


def _find_ucc(perftest: Path) -> Contender:
    """Take UCC's own benchmark, with the mpiexec beside it or the one on PATH."""
    beside = perftest.with_name("mpiexec")
    mpiexec = beside if beside.exists() else Path(shutil.which("mpiexec") or beside)
    for program in (perftest, mpiexec):
        if not program.exists():
            raise StartError(f"expected a program at {program}")
    info = perftest.with_name("ucc_info")
    its_version = _version(output_of(str(info), "-v") if info.exists() else "")
    measure = functools.partial(_measure_ucc, mpiexec, perftest)
    return Contender(UCC, COMMUNICATOR, its_version, measure)


def _measure_here(api: str, start: Start) -> list[dict[str, Any]]:
    """Start one process for each rank, with the variables that a launcher sets."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(_PROGRAM), _task(api, start, folder)]
        shared = {
            "WORLD_SIZE": str(start.ranks),
            "LOCAL_WORLD_SIZE": str(start.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(start.ranks)]
        run_all([(command, shared | each) for each in own], start.seconds, Path(folder))
        return _result(folder)


def _measure_copies(start: Start) -> list[dict[str, Any]]:
    sizes = tuple(size for size in start.sizes if size >= _MIN_COPY * start.ranks)
    return _measure_here("copies", replace(start, sizes=sizes)) if sizes else []


def _measure_mpi(mpiexec: Path, python: Path, start: Start) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [*_mpiexec(mpiexec, start.ranks), str(python), str(_PROGRAM)]
        run_all([([*command, _task("mpi", start, folder)], ROOT_MAY)], start.seconds, Path(folder))
        return _result(folder)


def _measure_ucc(mpiexec: Path, perftest: Path, start: Start) -> list[dict[str, Any]]:
    """Run it once for each size: it takes its number of calls for all of them.

    Its figure is the mean over calls with a barrier after each, of the slowest rank.
    """
    results = []
    op, *flags = _UCC_OPS[start.op]
    for size in start.sizes:
        waits_s = _SLICE_S if start.ranks > len(os.sched_getaffinity(0)) else 20e-6
        guess_s = start.ranks * (waits_s + 2e-9 * size)
        calls = start.calls or int(min(1000, max(3, start.seconds / len(start.sizes) / guess_s)))
        count = str(max(1, CASES[start.op].count(size, _DTYPE, start.ranks)))
        amounts = ("-b", count, "-e", count, "-n", str(calls), "-w", str(max(1, calls // 10)))
        command = [str(perftest), "-c", op, *flags, "-d", _DTYPE, "-m", "host", *amounts]
        with tempfile.TemporaryDirectory() as folder:
            started = [*_mpiexec(mpiexec, start.ranks), *command]
            log = run_all([(started, ROOT_MAY)], start.seconds, Path(folder))
        found = _UCC_TIME.search(log)
        if not found:
            raise StartError(f"ucc_perftest printed no time: {end_of(log)}")
        results.append({"bytes": size, "time_us": float(found[1]), "calls": calls})
    return results


def _mpiexec(mpiexec: Path, ranks: int) -> list[str]:
    """Return the start of a command line: each MPI's defaults, for the right number of ranks.

    Only Open MPI has to be asked for more ranks than cores. Asked to oversubscribe, it yields while
    it waits and binds no rank; asked without need, it would lose its binding.
    """
    command = [str(mpiexec), "-n", str(ranks)]
    threads = os.sched_getaffinity(0)
    cores = {Path(_SIBLINGS.format(thread)).read_text() for thread in threads}
    if ranks > len(cores) and _is_open_mpi(mpiexec):
        command += ["--map-by", ":OVERSUBSCRIBE" if ranks > len(threads) else ":HWTCPUS"]
    return command


@functools.cache
def _is_open_mpi(mpiexec: Path) -> bool:
    return "open" in output_of(str(mpiexec), "--version").lower()


def _version(text: str) -> str:
    found = re.search(r"\d[\w.]*", text)
    return found[0] if found else "(unknown version)"


def _task(api: str, start: Start, folder: str) -> str:
    sizes = [[size, *start.counts(size)] for size in start.sizes]
    result = str(Path(folder, "result.json"))
    amounts = {"seconds": start.seconds, "calls": start.calls, "sizes": sizes}
    return json.dumps({"api": api, "op": start.op, **amounts, "result": result})


def _result(folder: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(Path(folder, "result.json").read_text())
    return results
