"""RDMA for real: virtual machines whose kernel has soft-RoCE. Run by `.ci/roce`.

Each test boots its machines, which takes from seconds to a minute. Times mean nothing there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from guest_image import why_not
from machine import pair_of_machines
from thread_ranks import wait_until

HERE = Path(__file__).parent
RANKS, FAULTS, PROGRAMS, CHECK, DEVICES, CONFORMANCE = (
    f"{sys.executable} {HERE / f'guest_{name}.py'}"
    for name in ("ranks", "faults", "programs", "check", "devices", "conformance")
)
ROOT = HERE.parents[1]
NUM_LANE_TESTS = 5
PATIENCE_S = 550.0

pytestmark = [
    pytest.mark.nightly("roce"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(600),
]


@pytest.fixture
def machines() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_queue_pairs_pass_their_conformance_suite(tmp_path: Path, machines: ExitStack) -> None:
    """With one end on each of two machines."""
    both = pair_of_machines(tmp_path, CONFORMANCE)
    for machine in map(machines.enter_context, both):
        print(output := machine.wait(PATIENCE_S))
        assert " passed" in output.splitlines()[-1]


def test_lanes_over_the_device_pass_their_conformance_suite(
    tmp_path: Path, machines: ExitStack
) -> None:
    """With both ends on one machine, then with one on each of two; libibverbs' header agrees."""
    folder = built_programs("test_ibverbs", "test_lane", "test_lane_between_machines")
    suites = (
        f"export HCCL_TEST_RDMA=rxe0:1 HCCL_TEST_ADDRESS=10.99.0.1:7200 HCCL_TEST_MACHINE=$NUMBER; "
        f"{folder}/test_lane_between_machines && {folder}/test_lane && {folder}/test_ibverbs"
    )
    both = pair_of_machines(tmp_path, suites)
    for machine in map(machines.enter_context, both):
        output = machine.wait(PATIENCE_S)
        print(output)
        assert output.count("  RDMA device, three queue pairs") == NUM_LANE_TESTS
        assert output.count("  three queue pairs") == NUM_LANE_TESTS - 1


def built_programs(*names: str) -> Path:
    """Build C++ tests; return where they are."""
    if missing := [tool for tool in ("cmake", "c++") if not shutil.which(tool)]:
        pytest.skip(f"needs {' and '.join(missing)} to build the suite of lanes")
    folder = ROOT / "build" / "cpp-roce"
    # Compiled faster than with -O3; time means nothing here.
    flags = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *flags], check=True)
    targets = ["--target", *names, "--parallel", str(os.cpu_count())]
    subprocess.run(["cmake", "--build", folder, *targets], check=True)
    return folder


def test_two_machines_compute_every_collective(tmp_path: Path, machines: ExitStack) -> None:
    both = pair_of_machines(tmp_path, RANKS)
    for machine in map(machines.enter_context, both):
        print(output := machine.wait(PATIENCE_S))
        assert output.count("collectives done") == 2


def test_troubles_end_the_communicator_and_are_named(tmp_path: Path, machines: ExitStack) -> None:
    survivor, victim = map(machines.enter_context, pair_of_machines(tmp_path, FAULTS))

    def wait_for(file: str) -> None:
        def is_there() -> bool:
            assert survivor.is_running, survivor.output
            return all((one.shared / file).exists() for one in (survivor, victim))

        wait_until(is_there, f"both machines to come to {file}", PATIENCE_S)

    wait_for("pull_the_cable")
    victim.set_link(is_up=False)
    wait_for("plug_it_in")
    victim.set_link(is_up=True)
    wait_for("cut_the_power")
    victim.kill()
    print(survivor.wait(PATIENCE_S))


def test_programs_understand_each_other(tmp_path: Path, machines: ExitStack) -> None:
    both = pair_of_machines(tmp_path, PROGRAMS)
    for machine in map(machines.enter_context, both):
        print(machine.wait(PATIENCE_S))


def test_check_finds_what_is_wrong_and_names_what_mends_it(
    tmp_path: Path, machines: ExitStack
) -> None:
    both = pair_of_machines(tmp_path, CHECK)
    for machine in map(machines.enter_context, both):
        print(machine.wait(PATIENCE_S))


def test_lanes_spread_over_two_devices(tmp_path: Path, machines: ExitStack) -> None:
    both = pair_of_machines(tmp_path, DEVICES, num_networks=2)
    for machine in map(machines.enter_context, both):
        print(machine.wait(PATIENCE_S))
