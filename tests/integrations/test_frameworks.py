"""Frameworks from their wheels, unpatched: the traps are warned of, good jobs are quiet, and
`--replace-gloo` puts hccl in the place of gloo without an edit.

The programs print the sum of the model's parameters, and what the default group is.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from launching import run

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "build" / "environments" / "frameworks"
PYTHON = ENVIRONMENT / "bin" / "python"
PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 500.0  # DeepSpeed compiles a part of itself at its first start

pytestmark = [
    pytest.mark.nightly("frameworks"),
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(not PYTHON.exists(), reason="made by .ci/nightly frameworks"),
]

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("hccl_py.launcher.main", "--prefix", "never", "--nproc", "2")
WARNING = "hccl: warning: the ranks train copies"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(ENVIRONMENT / "extensions"))
    for name in ("HCCL_REPLACE", "HCCL_GUARD", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)


def start(launcher: tuple[str, ...], job: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = job.split()
    command = PYTHON, "-m", *launcher, PROGRAMS / f"{program}_job.py", *arguments
    return run(*command, limit_s=LIMIT_S)


def models(ran: subprocess.CompletedProcess[str], group: str) -> list[float]:
    """Return what each rank ended with, after a job that ended well."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"model (\S+) group (.*)", ran.stdout)
    assert [kind for _, kind in found] == [group] * 2, ran.stdout + ran.stderr
    return [float(value) for value, _ in found]


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("accelerate backend", "Accelerate"),
        ("trainer backend", "the Trainer of transformers"),
        ("ignite group", "ignite"),
    ],
)
def test_trap_is_warned_of_with_the_remedy(job: str, name: str) -> None:
    ran = start(TORCHRUN, job)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first != second, "the framework knows hccl by now: the guard can forget this trap"
    assert ran.stderr.count(WARNING) == 1, ran.stderr
    assert f"{name} trains here and works as if each rank were alone: use " in ran.stderr


def test_trap_is_an_error_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_GUARD", "error")
    ran = start(TORCHRUN, "accelerate backend")
    assert ran.returncode != 0
    assert "the ranks train copies" in ran.stderr


@pytest.mark.parametrize("job", ["accelerate backend", "trainer backend"])
def test_launcher_turns_the_trap_into_an_error(job: str) -> None:
    ran = start(LAUNCH, job)
    assert ran.returncode != 0
    assert "Your assigned backend hccl is not available" in ran.stderr


GOOD = [
    *("accelerate group", "accelerate local_sgd", "trainer group", "lightning strategy"),
    *("deepspeed hccl 0", "deepspeed hccl 1", "deepspeed hccl 3"),
]


@pytest.mark.parametrize("job", GOOD)
def test_good_job_is_quiet(job: str) -> None:
    ran = start(LAUNCH, job)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert WARNING not in ran.stderr
    # The last steps of LocalSGD are each rank's own.
    assert first == second or "local_sgd" in job


SWAPPED = [
    *("accelerate cpu", "trainer cpu", "ignite parallel", "lightning ddp"),
    *("deepspeed gloo 1", "deepspeed gloo 3"),
]


@pytest.mark.parametrize("job", SWAPPED)
def test_program_for_gloo_runs_on_hccl_and_trains_the_same(job: str) -> None:
    ran = start((*LAUNCH, "--replace-gloo"), job)
    ours = models(ran, "ProcessGroupHccl gloo")
    assert (ran.stdout + ran.stderr).count("HCCL_REPLACE=gloo: hccl carries CPU tensors") == 1
    assert WARNING not in ran.stderr
    theirs = models(start(LAUNCH, job), "ProcessGroup gloo")
    assert ours == pytest.approx(theirs, rel=1e-5)
