"""The limits of this process's cgroup: CPU time, CPUs and memory, in versions 1 and 2.

/proc/self/mountinfo has the mounted part of each hierarchy and its mount point. A container often
sees its own cgroup as the root of the mount, unlike in /proc/self/cgroup.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hccl_py.launcher.number_ranges import parse_ranges

# Version 1 shows "no limit" as the highest number of whole pages.
_NO_LIMIT_BYTES = 1 << 60


class CgroupLimits(NamedTuple):
    """The limits of the cgroup and its parents; None: no limit."""

    num_cores: float | None  # CPU time per time: 2.5 is two and a half cores
    cpus: frozenset[int] | None
    memory_bytes: int | None


def read(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits of this process; each parent cgroup may set a lower one."""
    folders = {name: _folders(root, name) for name in ("cpu", "cpuset", "memory")}
    return CgroupLimits(
        num_cores=_num_cores(folders["cpu"]),
        cpus=_cpus(folders["cpuset"]),
        memory_bytes=_memory_bytes(folders["memory"]),
    )


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel killed for lack of memory."""
    for folder in _folders(Path("/"), "memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in _text(folder / name).splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill" and count.isdigit():
                    return int(count)
    return 0


def _num_cores(folders: Sequence[Path]) -> float | None:
    quotas = [_text(folder / "cpu.max").split() for folder in folders]
    for folder in folders:
        quotas.append([_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")])
    limits = [quota for quota in quotas if quota and quota[0] not in ("", "max", "-1")]
    return min((int(time) / int(period) for time, period in limits), default=None)


def _cpus(folders: Sequence[Path]) -> frozenset[int] | None:
    for folder in folders:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if text := _text(folder / name):
                return parse_ranges(text)
    return None


def _memory_bytes(folders: Sequence[Path]) -> int | None:
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [_text(folder / name) for folder in folders for name in names]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT_BYTES), default=None)


def _folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and its parents, innermost first."""
    cgroups = dict(_cgroups(root))
    found = []
    for name, inside, mount_point in _mounts(root):
        if name in (controller, "") and name in cgroups:
            folder = top = root / mount_point.lstrip("/")
            with suppress(ValueError):  # its cgroup path is not in this mount
                folder = top / PurePosixPath(cgroups[name]).relative_to(inside)
            depth = len(folder.parts) - len(top.parts)
            found += [folder, *folder.parents[:depth]]
    return found


def _cgroups(root: Path) -> list[tuple[str, str]]:
    """Return the controllers of version 1 and "" for version 2, each with this process's cgroup."""
    lines = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()]
    return [(name, path) for _, names, path in lines for name in names.split(",")]


def _mounts(root: Path) -> list[tuple[str, str, str]]:
    """Return, by controller, the mounted part of its hierarchy, and the mount point."""
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        inside, mount_point = mount.split()[3:5]
        kind, *_, options = filesystem.split()
        if kind == "cgroup2":
            found.append(("", inside, mount_point))
        elif kind == "cgroup":
            found += [(name, inside, mount_point) for name in options.split(",")]
    return found


def _text(path: Path) -> str:
    """Return the content of a file; empty if it is missing or may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
