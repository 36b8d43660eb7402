"""A healthy job logs nothing, however loaded the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("healthy_jobs.py")


NUM_JOBS = 120


@pytest.mark.nightly("faults")
def test_healthy_jobs_on_a_loaded_machine_log_nothing() -> None:
    command = [sys.executable, str(SCRIPT), str(NUM_JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
