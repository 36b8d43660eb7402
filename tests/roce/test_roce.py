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
RANKS = f"{sys.executable} {HERE / 'guest_ranks.py'}"
CONFORMANCE = HERE.parent / "transport" / "verbs" / "test_rdma_conformance.py"
# A peer that is silent is given up after half a second.
QUICK = "export HCCL_IB_TIMEOUT=14"
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
    both = pair_of_machines(tmp_path, f"{RANKS} collectives")
    for machine in map(machines.enter_context, both):
        assert machine.wait(PATIENCE_S).count("collectives done") == 2


def test_machine_that_loses_its_power_is_named(tmp_path: Path, machines: ExitStack) -> None:
    survivor, victim = map(
        machines.enter_context, pair_of_machines(tmp_path, f"{QUICK}; {RANKS} until_it_fails")
    )
    ready = [tmp_path / f"vm{1 + rank // 2}" / f"ready{rank}" for rank in range(4)]
    wait_until(lambda: all(map(Path.exists, ready)), "the machines connect", PATIENCE_S)
    victim.kill()
    said = survivor.wait(PATIENCE_S)
    for rank in (0, 1):
        assert f"rank {rank} after" in said
    assert "PeerLostError" in said
    assert "retry counter exceeded" in said  # libibverbs' own words


def test_ibv_rc_pingpong_is_understood(tmp_path: Path, machines: ExitStack) -> None:
    theirs = "ibv_rc_pingpong -d rxe0 -g 1 -n 100 -s 5000"
    ours = f"{sys.executable} {HERE / 'guest_pingpong.py'} 10.99.0.1 100 5000"
    command = f"if [ $NUMBER = 1 ]; then {theirs}; else {ours}; fi"
    for machine in map(machines.enter_context, pair_of_machines(tmp_path, command)):
        machine.wait(PATIENCE_S)
