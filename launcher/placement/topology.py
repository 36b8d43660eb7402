"""This machine as a rank may use it: its CPUs with their core, last-level cache and NUMA node.

Everything is read below a root folder, so tests read trees of machines that they do not have.
Containers hide parts of /sys. `Machine.unread` says what is missing and what is assumed instead.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.number_ranges import parse_ranges
from hccl_py.launcher.placement import cgroup


class Cpu(NamedTuple):
    """A CPU of the scheduler. In ascending order, neighbours share as much as possible."""

    package: int
    numa: int
    cache: int  # lowest CPU of those that share the last-level cache
    core: int  # lowest CPU of the physical core
    number: int


class Machine(NamedTuple):
    """The CPUs that this process may use, and the limits of its cgroup."""

    cpus: tuple[Cpu, ...]  # in ascending order
    quota: float | None  # cores that the cgroup pays for; None: no limit
    memory_bytes: int | None  # limit of the cgroup; None: no limit
    unread: tuple[str, ...] = ()  # a line for each thing that /sys does not show

    @property
    def cores(self) -> tuple[tuple[Cpu, ...], ...]:
        """The physical cores, each with its usable CPUs."""
        return tuple(tuple(cpus) for _, cpus in groupby(self.cpus, lambda cpu: cpu.core))


def read_machine(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Machine:
    """Read this machine.

    Args:
        root: the folder in which `sys` and `proc` are.
        affinity: CPUs that the process may use; None: those of this process.
    """
    limits = cgroup.read(root)
    usable = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    system = root / "sys/devices/system"
    for allowed in (limits.cpus, _list(system / "cpu/online")):
        # No CPU left: the file speaks of another container. The kernel enforces the affinity.
        usable = (usable & (allowed or usable)) or usable
    numas = dict(_numas(system / "node"))
    cpus = tuple(sorted(_cpu(system / "cpu", number, numas.get(number, 0)) for number in usable))
    unread = []
    if not numas:
        unread.append(f"{system}/node is missing: one NUMA node is assumed")
    if not (system / f"cpu/cpu{min(usable)}/topology").is_dir():
        unread.append(f"{system}/cpu/cpu*/topology is missing: each CPU counts as a core")
    return Machine(cpus, limits.num_cores, limits.memory_bytes, tuple(unread))


def _cpu(folder: Path, number: int, numa: int) -> Cpu:
    own = folder / f"cpu{number}"
    package = 0
    with suppress(OSError, ValueError):
        package = int((own / "topology/physical_package_id").read_text())
    caches = dict(_caches(own / "cache"))
    siblings = _list(own / "topology/thread_siblings_list") or {number}
    return Cpu(package, numa, caches[max(caches)] if caches else 0, min(siblings), number)


def _caches(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the level of each cache of a CPU, with the lowest CPU that shares it."""
    for index in folder.glob("index*"):
        with suppress(OSError, ValueError):
            yield int((index / "level").read_text()), min(_list(index / "shared_cpu_list"))


def _numas(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield each CPU with its NUMA node."""
    for node in folder.glob("node[0-9]*"):
        for number in _list(node / "cpulist"):
            yield number, int(node.name.removeprefix("node"))


def _list(path: Path) -> frozenset[int]:
    """Return the numbers that a file lists; none if it is missing or no list."""
    with suppress(OSError, ValueError):
        return parse_ranges(path.read_text())
    return frozenset()
