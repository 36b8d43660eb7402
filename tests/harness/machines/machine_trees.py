"""Machines that the tests do not have: their /sys and /proc as files below a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """How many of each are in one of the next larger."""

    packages: int = 1
    numas: int = 1
    caches: int = 1
    cores: int = 4
    threads: int = 2

    @property
    def num_cores(self) -> int:
        return self.packages * self.numas * self.caches * self.cores


def write_machine(root: Path, shape: Shape, offline: frozenset[int] = frozenset()) -> Path:
    """Write /sys of a machine whose CPU c and c + number of cores are siblings; return the root.

    An offline CPU has neither topology nor caches, and stands in no list.
    """
    num_cpus = shape.num_cores * shape.threads
    online = sorted(set(range(num_cpus)) - offline)

    def near(cpu: int, size: int) -> list[int]:
        """Online CPUs of the same `size` neighbouring cores."""
        block = cpu % shape.num_cores // size
        return [other for other in online if other % shape.num_cores // size == block]

    _write(root, "cpu/online", _list(online))
    for cpu in online:
        package = cpu % shape.num_cores // (shape.num_cores // shape.packages)
        for name, text in (
            ("topology/physical_package_id", str(package)),
            ("topology/thread_siblings_list", _list(near(cpu, 1))),
            ("cache/index0/level", "1"),
            ("cache/index0/shared_cpu_list", _list(near(cpu, 1))),
            ("cache/index3/level", "3"),
            ("cache/index3/shared_cpu_list", _list(near(cpu, shape.cores))),
        ):
            _write(root, f"cpu/cpu{cpu}/{name}", text)
    size = shape.caches * shape.cores
    for numa in range(shape.packages * shape.numas):
        _write(root, f"node/node{numa}/cpulist", _list(near(numa * size, size)))
    return root


def write_cgroup(root: Path, cgroup: str, mounts: str, files: Mapping[str, str]) -> None:
    """Write /proc/self/cgroup and mountinfo, and files below /sys/fs/cgroup."""
    texts = {
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mounts,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _write(root: Path, name: str, text: str) -> None:
    path = root / "sys/devices/system" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
