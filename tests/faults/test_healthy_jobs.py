"""A healthy job logs nothing, however loaded the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("healthy_jobs.py")


@pytest.mark.parametrize("num_jobs", [6, pytest.param(120, marks=pytest.mark.nightly("faults"))])
def test_healthy_jobs_on_a_loaded_machine_log_nothing(num_jobs: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(num_jobs)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
