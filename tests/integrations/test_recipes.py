"""The examples of examples/frameworks that need torch alone, or Ray."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, job, launch, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
LIMIT_S = 300.0

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]


def test_weights_go_from_a_trainer_to_an_inference_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("WEIGHTS", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("HCCL_SECRET", "the same for both jobs")
    printed = ""
    with ExitStack() as stack:
        command = *COMMAND, "--nproc", 2, EXAMPLES / "rl_weights.py"
        jobs = [stack.enter_context(job(*command, role)) for role in ("trainer", "inference")]
        for each in jobs:
            out, err = each.communicate(timeout=LIMIT_S)
            assert each.returncode == 0, out + err
            printed += out
    found = re.findall("(trainer|inference) (.*)", printed)
    assert sorted(role for role, _ in found) == ["inference", "inference", "trainer"]
    assert len({total for _, total in found}) == 1, found


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
