"""The example that loses a rank: the others say which, and finish the training."""

import re
import sys
from pathlib import Path

import pytest
from launching import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "04_survive.py"


@pytest.mark.nightly("training")
def test_training_survives_the_coordinator() -> None:
    done = run(sys.executable, EXAMPLE, "--ranks", 3, "--victim", 0, "--steps", 100)
    assert done.returncode == 0, done.stderr
    assert "rank 0 (host" in done.stdout
    assert "continuing as default/shrunk-1 with 2 ranks\n" in done.stdout
    steps = re.findall(r"^step (\d+)/100 on (\d) ranks: .* accuracy (\S+)%", done.stdout, re.M)
    assert [(step, ranks) for step, ranks, _ in steps] == [
        *(("25", "3"), ("50", "3"), ("75", "2"), ("100", "2"))
    ]
    assert float(steps[-1][2]) > 95.0
