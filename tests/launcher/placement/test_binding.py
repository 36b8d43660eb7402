"""Which cores each rank gets, on machines of many shapes."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_trees import Shape, write_cgroup, write_machine
from quiet_clock import HANG_S

from hccl_py.launcher.number_ranges import parse_ranges, ranges
from hccl_py.launcher.placement.binding import Bind, Place, bound_to, place
from hccl_py.launcher.placement.topology import Cpu, Machine, read_machine

TWO_SOCKETS = Shape(packages=2, numas=2, caches=2, cores=4)
V2 = "30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


def cpus(root: Path, num_ranks: int, bind: Bind, affinity: str = "0-1023") -> list[str]:
    """Return the CPUs of each rank as lists."""
    machine = read_machine(root, parse_ranges(affinity))
    return [ranges(each.cpus, ",") for each in place(machine, num_ranks, bind).places]


@pytest.mark.parametrize(
    ("shape", "num_ranks", "expected"),
    [
        (Shape(), 2, ["0-1,4-5", "2-3,6-7"]),
        (Shape(), 4, ["0,4", "1,5", "2,6", "3,7"]),
        (TWO_SOCKETS, 4, ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]),
        (Shape(caches=4, cores=3, threads=1), 4, ["0-2", "3-5", "6-8", "9-11"]),
        # Longer runs stand where they cross no border: no rank has cores of two caches.
        (Shape(caches=2, cores=5, threads=1), 4, ["0-2", "3-4", "5-7", "8-9"]),
        (Shape(numas=2, cores=3, threads=1), 5, ["0-1", "2", "3", "4", "5"]),
    ],
)
def test_cores_are_split_along_numa_nodes_and_caches(
    tmp_path: Path, shape: Shape, num_ranks: int, expected: list[str]
) -> None:
    assert cpus(write_machine(tmp_path, shape), num_ranks, Bind.CORE) == expected


def test_a_border_of_caches_is_crossed_before_one_of_numa_nodes(tmp_path: Path) -> None:
    # Lengths 3, 3, 3, 3, 2, 2 would cross as few borders, but one of them between NUMA nodes.
    root = write_machine(tmp_path, Shape(numas=2, caches=2, cores=4, threads=1))
    expected = ["0-2", "3-5", "6-7", "8-10", "11-13", "14-15"]
    assert cpus(root, 6, Bind.CORE) == expected


def test_cpuset_that_leaves_odd_cores_is_split_fairly(tmp_path: Path) -> None:
    root = write_machine(tmp_path, Shape(numas=2))
    assert cpus(root, 2, Bind.CORE, "1,5-7,9-10,12,15") == ["1,9-10,12", "5-7,15"]


def test_numa_ranks_get_whole_nodes(tmp_path: Path) -> None:
    root = write_machine(tmp_path, TWO_SOCKETS)
    nodes = ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]
    assert cpus(root, 8, Bind.NUMA) == [node for node in nodes for _ in range(2)]
    assert cpus(root, 1, Bind.NUMA) == ["0-63"]
    assert cpus(root, 2, Bind.NUMA) == ["0-15,32-47", "16-31,48-63"]
    # A node of which the cpuset leaves less gets fewer ranks.
    few = cpus(root, 6, Bind.NUMA, "0-7,8-9,16-23,24-25")
    assert few == ["0-7", "0-7", "8-9", "16-23", "16-23", "24-25"]


def test_more_ranks_than_cores_share_all_and_the_user_is_told(tmp_path: Path) -> None:
    machine = read_machine(write_machine(tmp_path, Shape()), range(8))
    placement = place(machine, 5, Bind.CORE)
    assert placement.note == "--bind core: 5 ranks on 4 cores; they share CPUs 0-7"
    assert {(each.cpus, each.is_bound) for each in placement.places} == {(tuple(range(8)), False)}
    assert place(machine, 4, Bind.CORE).note == ""


@pytest.mark.parametrize(
    ("quota", "num_ranks", "bind", "threads"),
    [
        ("max", 4, Bind.NONE, 4),
        ("max", 3, Bind.NONE, 5),
        ("max", 3, Bind.CORE, 5),
        ("max", 5, Bind.NUMA, 2),
        ("max", 99, Bind.NONE, 1),
        ("250000", 1, Bind.NONE, 2),
        ("250000", 2, Bind.CORE, 1),
        ("250000", 4, Bind.NONE, 1),
    ],
)
def test_threads_follow_cores_and_quota(
    tmp_path: Path, quota: str, num_ranks: int, bind: Bind, threads: int
) -> None:
    root = write_machine(tmp_path, Shape(numas=2, cores=8))
    write_cgroup(root, "0::/", V2, {"cpu.max": f"{quota} 100000"})
    placement = place(read_machine(root, range(32)), num_ranks, bind)
    assert min(each.num_threads for each in placement.places) == threads


def test_quota_takes_no_cores_away(tmp_path: Path) -> None:
    root = write_machine(tmp_path, Shape(cores=16, threads=1))
    write_cgroup(root, "0::/", V2, {"cpu.max": "250000 100000"})
    assert cpus(root, 4, Bind.CORE) == ["0-3", "4-7", "8-11", "12-15"]


def test_users_number_of_threads_stays() -> None:
    it = Place(cpus=(0,), numas=(0,), num_threads=3, is_bound=False)
    assert it.environment({}) == {"OMP_NUM_THREADS": "3"}
    assert it.environment({"OMP_NUM_THREADS": "8"}) == {}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw machines whose cpuset leaves any part of them."""
    count = st.integers(1, 3)
    shape = [draw(count) for _ in range(4)]
    cores = list(itertools.product(*map(range, shape)))
    threads = draw(st.integers(1, 2))
    all_cpus = [
        Cpu(package, package * 3 + numa, cache, number, number + thread * len(cores))
        for number, (package, numa, cache, _) in enumerate(cores)
        for thread in range(threads)
    ]
    kept = draw(st.sets(st.sampled_from(all_cpus), min_size=1))
    return Machine(tuple(sorted(kept)), draw(st.none() | st.floats(0.1, 9)), None)


@settings(deadline=None)  # other programs may hold the core
@given(machines(), st.integers(1, 40), st.sampled_from(Bind))
def test_places_are_fair_and_disjoint(machine: Machine, num_ranks: int, bind: Bind) -> None:
    usable = {cpu.number for cpu in machine.cpus}
    core_of = {cpu.number: cpu.core for cpu in machine.cpus}
    places = place(machine, num_ranks, bind).places
    assert len(places) == num_ranks
    for each in places:
        assert each.cpus and set(each.cpus) <= usable
        assert each.num_threads >= 1
    if bind is Bind.CORE and num_ranks <= len(machine.cores):
        cores = [{core_of[number] for number in each.cpus} for each in places]
        assert sum(map(len, cores)) == len(set.union(*cores)) == len(machine.cores)
        assert max(map(len, cores)) - min(map(len, cores)) <= 1
        assert {number for each in places for number in each.cpus} == usable


def test_started_process_has_the_cpus_and_the_launcher_keeps_its_own() -> None:
    before = os.sched_getaffinity(0)
    only = (max(before),)
    show = "import os; print(*os.sched_getaffinity(0))"
    with bound_to(Place(only, (0,), 1, is_bound=True)):
        bound = subprocess.check_output([sys.executable, "-c", show], timeout=HANG_S)
    assert bound.split() == [str(only[0]).encode()]
    assert os.sched_getaffinity(0) == before
