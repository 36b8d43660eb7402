"""RDMA for real: virtual machines whose kernel has soft-RoCE. Run by `.ci/roce`.

Each test boots its machines, which takes from seconds to a minute. Times mean nothing there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from guest_image import why_not
from machine import Machine, pair_of_machines
from thread_ranks import wait_until

HERE = Path(__file__).parent
RANKS, FAULTS, PROGRAMS, DDP, CHECK, DEVICES = (
    f"{sys.executable} {HERE / f'guest_{name}.py'}"
    for name in ("ranks", "faults", "programs", "ddp", "check", "devices")
)
CONFORMANCE = HERE.parent / "transport" / "verbs" / "test_rdma_conformance.py"
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


def test_device_passes_the_conformance_suite(tmp_path: Path, machines: ExitStack) -> None:
    pytest_ = f"{sys.executable} -m pytest -q -p no:cacheprovider {CONFORMANCE}"
    machine = machines.enter_context(Machine(tmp_path / "vm", 1, pytest_))
    assert " passed" in machine.wait(PATIENCE_S).splitlines()[-1]


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


def test_ddp_takes_a_step(tmp_path: Path, machines: ExitStack) -> None:
    both = pair_of_machines(tmp_path, DDP)
    for machine in map(machines.enter_context, both):
        assert "a step of DDP is right" in machine.wait(PATIENCE_S)


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
