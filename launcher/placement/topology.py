"""This machine's usable CPUs with their core, last-level cache and NUMA node.

Everything is read below a root folder, so tests can read trees of other machines.
Containers hide parts of /sys: without them there is one NUMA node, and each CPU is a core.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.number_ranges import parse_ranges
from hccl_py.launcher.placement import cgroup
from hccl_py.transport.network.system_calls import usable_cores


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
    quota: float | None  # cores in the cgroup's quota; None: no limit
    memory_bytes: int | None  # limit of the cgroup; None: no limit

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
    usable = frozenset(usable_cores() if affinity is None else affinity)
    system = root / "sys/devices/system"
    for allowed in (limits.cpus, _list(system / "cpu/online")):
        # No CPU left: the file belongs to another container. The kernel enforces the affinity.
        usable = (usable & (allowed or usable)) or usable
    numas = dict(_numas(system / "node"))
    cpus = tuple(sorted(_cpu(system / "cpu", number, numas.get(number, 0)) for number in usable))
    return Machine(cpus, limits.num_cores, limits.memory_bytes)


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
    """Return the numbers that a file lists; none if it is missing or not a list."""
    with suppress(OSError, ValueError):
        return parse_ranges(path.read_text())
    return frozenset()


USE_CPU = "ACCELERATE_USE_CPU"
"""Without it, Accelerate and the Trainer of transformers treat a rank as a job alone."""
_DEVICES = (
    *("nvidia[0-9]*", "nvidiactl", "dxg"),  # CUDA; dxg under WSL
    "kfd",  # ROCm
    *("accel/*", "hl[0-9]*", "davinci[0-9]*", "neuron[0-9]*"),  # Gaudi, Ascend, Trainium
)
_DRIVERS_OF_XPU = ("i915", "xe")


def has_accelerator(root: Path = Path("/")) -> bool:
    """Return whether torch might find an accelerator here, without torch."""
    if any(any((root / "dev").glob(pattern)) for pattern in _DEVICES):
        return True
    for node in (root / "dev/dri").glob("renderD*"):  # display adapters have these too
        driver = root / "sys/class/drm" / node.name / "device/driver"
        if driver.resolve().name in _DRIVERS_OF_XPU:
            return True
    return False


def framework_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return missing variables of the ranks; a setting of the user stays."""
    return {} if USE_CPU in environ or has_accelerator() else {USE_CPU: "true"}
