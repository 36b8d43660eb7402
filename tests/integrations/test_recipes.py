"""The examples of examples/frameworks that need torch alone, or Ray."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launching import launch, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
LIMIT_S = 300.0

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]


def test_checkpoint_is_saved_beside_training() -> None:
    ran = launch("--nproc", 2, EXAMPLES / "dcp_async_save.py", limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("loaded what was saved") == 2


@pytest.mark.shows("Ray Train", "data parallel")
def test_ray_train_ends_with_equal_parameters() -> None:
    ran = run(sys.executable, EXAMPLES / "train_ray.py", limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"model (\S+) group (\w+)", ran.stdout + ran.stderr)
    assert {group for _, group in found} == {"ProcessGroupHccl"}, ran.stdout + ran.stderr
    assert len(found) == 2, found
    assert found[0] == found[1]
