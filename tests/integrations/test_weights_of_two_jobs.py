"""Weights go from a trainer's job to an inference engine's, as in RL stacks."""

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, job
from namespaces import TWO_HOSTS, Hosts

EXAMPLE = Path(__file__).parents[2] / "examples" / "frameworks" / "rl_weights.py"
LIMIT_S = 300.0

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SECRET", "the same for both jobs")


def check_weights_are_equal(trainer: Sequence[object], engine: Sequence[object]) -> None:
    """Run both jobs, whose command lines begin so."""
    printed = ""
    with ExitStack() as stack:
        words = *COMMAND, "--nproc", 2, EXAMPLE
        jobs = [
            stack.enter_context(job(*prefix, *words, role))
            for prefix, role in ((trainer, "trainer"), (engine, "inference"))
        ]
        for each in jobs:
            out, err = each.communicate(timeout=LIMIT_S)
            assert each.returncode == 0, out + err
            printed += out
    found = re.findall("(trainer|inference) (.*)", printed)
    assert sorted(role for role, _ in found) == ["inference", "inference", "trainer"]
    assert len({total for _, total in found}) == 1, found


@pytest.mark.nightly("frameworks")
def test_weights_go_from_a_trainer_to_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WEIGHTS", f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    check_weights_are_equal([], [])


@TWO_HOSTS
def test_weights_go_to_another_host_although_each_job_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Hosts() as hosts:
        monkeypatch.setenv("WEIGHTS", f"tcp://{hosts.address(0)}:29700")
        check_weights_are_equal(hosts.command(0), hosts.command(1))
