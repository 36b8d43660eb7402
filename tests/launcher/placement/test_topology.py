"""Machines as their /sys and cgroups show them, whole or with parts missing."""

import os
from pathlib import Path

import pytest
from machine_trees import Shape, write_cgroup, write_machine

from hccl_py.launcher.number_ranges import parse_ranges, ranges
from hccl_py.launcher.placement import topology
from hccl_py.launcher.placement.topology import (
    Cpu,
    framework_variables,
    has_accelerator,
    read_machine,
)

V2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("5\n", [5]), ("\n", [])],
)
def test_cpu_list_is_read_and_written(text: str, numbers: list[int]) -> None:
    assert parse_ranges(text) == set(numbers)
    assert ranges(reversed(numbers), ",") == text.strip()


def test_siblings_of_a_core_stay_together(tmp_path: Path) -> None:
    machine = read_machine(write_machine(tmp_path, Shape()), range(8))
    assert [[cpu.number for cpu in core] for core in machine.cores] == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]
    assert (machine.quota, machine.memory_bytes) == (None, None)


def test_two_packages_have_their_numa_nodes_and_caches(tmp_path: Path) -> None:
    machine = read_machine(write_machine(tmp_path, Shape(2, 2, 2, 4)), range(64))
    assert len(machine.cores) == 32
    assert machine.cpus[0] == Cpu(package=0, numa=0, cache=0, core=0, number=0)
    assert machine.cpus[1] == Cpu(package=0, numa=0, cache=0, core=0, number=32)
    assert machine.cpus[-1] == Cpu(package=1, numa=3, cache=28, core=31, number=63)


def test_offline_and_excluded_cpus_are_left_out(tmp_path: Path) -> None:
    root = write_machine(tmp_path, Shape(), offline=frozenset({1, 6}))
    write_cgroup(root, "0::/", V2, {"cpuset.cpus.effective": "0-6"})
    machine = read_machine(root, range(8))
    assert [[cpu.number for cpu in core] for core in machine.cores] == [[0, 4], [2], [3], [5]]
    assert [cpu.number for cpu in read_machine(root, {4, 5, 7}).cpus] == [4, 5]
    # None is left: the affinity, which the kernel enforces, is right and the cpuset is not.
    assert [cpu.number for cpu in read_machine(root, {7}).cpus] == [7]


@pytest.mark.parametrize(
    ("cgroup", "mounts"),
    [
        ("0::/jobs/7", V2),
        # A container that sees the cgroup above its own as the mount's root.
        ("0::/pods/jobs/7", V2.replace(" / ", " /pods ", 1)),
    ],
)
def test_the_lowest_limit_of_all_cgroups_above_counts(
    tmp_path: Path, cgroup: str, mounts: str
) -> None:
    files = {
        "jobs/7/cpu.max": "max 100000",
        "jobs/7/memory.max": "8589934592",
        "jobs/cpu.max": "125000 50000",
        "jobs/memory.max": "max",
        "jobs/cpuset.cpus.effective": "0-2",
        "jobs/8/cpu.max": "100000 100000",
    }
    write_cgroup(write_machine(tmp_path, Shape()), cgroup, mounts, files)
    machine = read_machine(tmp_path, range(8))
    assert (machine.quota, machine.memory_bytes) == (2.5, 8 << 30)
    assert [cpu.number for cpu in machine.cpus] == [0, 1, 2]


def test_container_whose_cgroup_is_outside_the_mount_reads_the_mounts_root(tmp_path: Path) -> None:
    write_cgroup(write_machine(tmp_path, Shape()), "0::/../7", V2, {"cpu.max": "300000 100000"})
    assert read_machine(tmp_path, range(8)).quota == 3


@pytest.mark.parametrize(
    ("limit", "memory_bytes"), [("1073741824", 1 << 30), (str((1 << 63) - 4096), None)]
)
def test_cgroup_version_1_is_read(tmp_path: Path, limit: str, memory_bytes: int | None) -> None:
    mounts = (
        "33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 24 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 24 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    )
    files = {
        "cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "150000",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "cpuset/job/cpuset.effective_cpus": "1,3,5",
        "memory/job/memory.limit_in_bytes": limit,
    }
    cgroup = "4:memory:/job\n3:cpuset:/job\n2:cpu,cpuacct:/job\n0::/job"
    write_cgroup(write_machine(tmp_path, Shape()), cgroup, mounts, files)
    machine = read_machine(tmp_path, range(8))
    assert (machine.quota, machine.memory_bytes) == (1.5, memory_bytes)
    assert [cpu.number for cpu in machine.cpus] == [1, 5, 3]


def test_without_sys_each_cpu_is_a_core(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, {2, 3})
    assert [[cpu.number for cpu in core] for core in machine.cores] == [[2], [3]]


def test_this_machine_is_read() -> None:
    assert {cpu.number for cpu in read_machine().cpus} == os.sched_getaffinity(0)


def machine(root: Path, *devices: str, driver: str = "") -> Path:
    for device in devices:
        path = root / "dev" / device
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if driver:
            node = root / "sys/class/drm" / path.name / "device"
            node.mkdir(parents=True)
            (node / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    return root


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "dxg", "kfd", "accel/accel0"])
def test_device_file_is_an_accelerator(tmp_path: Path, device: str) -> None:
    assert has_accelerator(machine(tmp_path, device))


@pytest.mark.parametrize(("driver", "found"), [("xe", True), ("i915", True), ("ast", False)])
def test_render_node_is_one_of_an_xpu_driver(tmp_path: Path, driver: str, found: bool) -> None:
    assert has_accelerator(machine(tmp_path, "dri/renderD128", driver=driver)) is found


def test_others_are_none(tmp_path: Path) -> None:
    assert not has_accelerator(machine(tmp_path, "null", "nvram", "dri/card0"))


def test_setting_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "has_accelerator", lambda: False)
    assert framework_variables({}) == {"ACCELERATE_USE_CPU": "true"}
    assert framework_variables({"ACCELERATE_USE_CPU": "false"}) == {}
    monkeypatch.setattr(topology, "has_accelerator", lambda: True)
    assert framework_variables({}) == {}
