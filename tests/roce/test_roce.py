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

HERE = Path(__file__).parent
RANKS = f"{sys.executable} {HERE / 'guest_ranks.py'}"
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
        assert machine.wait(PATIENCE_S).count("collectives done") == 2
