"""Frameworks from their wheels, unpatched: the traps are warned of, good jobs are quiet, and
`--replace-gloo` puts hccl in the place of gloo without an edit.

The programs print the sum of the model's parameters, and what the default group is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from launching import run

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 500.0  # DeepSpeed compiles a part of itself at its first start

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("hccl_py.launcher.main", "--prefix", "never", "--nproc", "2")
WARNING = "hccl: warning: the ranks train copies"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "extensions"))
    for name in ("HCCL_REPLACE", "HCCL_GUARD", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)


def start(launcher: tuple[str, ...], words: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = words.split()
    command = sys.executable, "-m", *launcher, PROGRAMS / f"{program}_job.py", *arguments
    return run(*command, limit_s=LIMIT_S)


def models(ran: subprocess.CompletedProcess[str], group: str) -> list[float]:
    """Return what each rank ended with, after a job that ended well."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"model (\S+) group (.*)", ran.stdout)
    assert [kind for _, kind in found] == [group] * 2, ran.stdout + ran.stderr
    return [float(value) for value, _ in found]


def job(words: str, framework: str, column: str, text: str = "yes") -> ParameterSet:
    """Return a parameter: the job, and what a test shows that passes with it."""
    return pytest.param(words, marks=pytest.mark.shows(framework, column, text), id=words)


NAMES = {"trainer": "the Trainer of transformers", "accelerate": "Accelerate", "ignite": "ignite"}
TRAPS = [
    job("accelerate backend", "Accelerate", "guard", "warns"),
    job("trainer backend", "transformers", "guard", "warns"),
    job("ignite group", "ignite", "guard", "warns"),
]


@pytest.mark.parametrize("words", TRAPS)
def test_trap_is_warned_of_with_the_remedy(words: str) -> None:
    ran = start(TORCHRUN, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first != second, "the framework knows hccl by now: the guard can forget this trap"
    assert ran.stderr.count(WARNING) == 1, ran.stderr
    name = NAMES[words.split()[0]]
    assert f"{name} trains here and works as if each rank were alone: use " in ran.stderr


@pytest.mark.shows("Accelerate", "guard", "warns")
def test_trap_is_an_error_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_GUARD", "error")
    ran = start(TORCHRUN, "accelerate backend")
    assert ran.returncode != 0
    assert "the ranks train copies" in ran.stderr


@pytest.mark.parametrize("words", TRAPS[:2])
def test_launcher_turns_the_trap_into_an_error(words: str) -> None:
    ran = start(LAUNCH, words)
    assert ran.returncode != 0
    assert "Your assigned backend hccl is not available" in ran.stderr


GOOD = [
    job("accelerate group", "Accelerate", "data parallel"),
    job("accelerate local_sgd", "Accelerate", "data parallel"),
    job("trainer group", "transformers", "data parallel"),
    job("lightning strategy", "Lightning", "data parallel"),
    job("deepspeed hccl 0", "DeepSpeed", "data parallel"),
    job("deepspeed hccl 1", "DeepSpeed", "sharded", "ZeRO 1"),
    job("deepspeed hccl 3", "DeepSpeed", "sharded", "ZeRO 3"),
]


@pytest.mark.parametrize("words", GOOD)
def test_good_job_is_quiet(words: str) -> None:
    ran = start(LAUNCH, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert WARNING not in ran.stderr
    # The last steps of LocalSGD are each rank's own.
    assert first == second or "local_sgd" in words


SWAPPED = [
    job("accelerate cpu", "Accelerate", "--replace-gloo"),
    job("trainer cpu", "transformers", "--replace-gloo"),
    job("ignite parallel", "ignite", "--replace-gloo"),
    job("lightning ddp", "Lightning", "--replace-gloo"),
    job("deepspeed gloo 1", "DeepSpeed", "--replace-gloo"),
    job("deepspeed gloo 3", "DeepSpeed", "--replace-gloo"),
]


@pytest.mark.parametrize("words", SWAPPED)
def test_program_for_gloo_runs_on_hccl_and_trains_the_same(words: str) -> None:
    ran = start((*LAUNCH, "--replace-gloo"), words)
    ours = models(ran, "ProcessGroupHccl gloo")
    assert (ran.stdout + ran.stderr).count("HCCL_REPLACE=gloo: hccl carries CPU tensors") == 1
    assert WARNING not in ran.stderr
    theirs = models(start(LAUNCH, words), "ProcessGroup gloo")
    assert ours == pytest.approx(theirs, rel=1e-5)
