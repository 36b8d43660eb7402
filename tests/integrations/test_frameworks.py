"""Frameworks from their wheels: what would be a trap without the adapters of hccl_py.integrations
is right with them and warned of without, good jobs are quiet, and `--replace-gloo` puts hccl in the
place of gloo without an edit.

The programs print the sum of the model's parameters, and what the default group is.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import run
from matrix import shown

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 500.0  # DeepSpeed compiles a part of itself at its first start

pytestmark = [
    pytest.mark.nightly("frameworks"),
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.usefixtures("environment"),
]

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("hccl_py.launcher.main", "--prefix", "never", "--nproc", "2")
WARNING = "hccl: warning: the ranks train copies"


def start(launcher: tuple[str, ...], words: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = words.split()
    command = sys.executable, "-m", *launcher, PROGRAMS / f"{program}_job.py", *arguments
    return run(*command, limit_s=LIMIT_S)


def models(ran: subprocess.CompletedProcess[str], group: str) -> list[float]:
    """Return what each rank ended with, after a job that ended well."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Two ranks may write into one line before either ends it.
    found = re.findall(r"model (\S+) group (.*?)(?=model|$)", ran.stdout, re.MULTILINE)
    assert [kind for _, kind in found] == [group] * 2, ran.stdout + ran.stderr
    return [float(value) for value, _ in found]


NAMES = {"trainer": "the Trainer of transformers", "accelerate": "Accelerate", "ignite": "ignite"}
REMEDIES = {
    "lightning alone": 'use Trainer(strategy="hccl", devices=N, num_nodes=M)',
    "deepspeed module": "train the engine of deepspeed.initialize()",
}
MISUSED = [
    shown("lightning alone", "Lightning", guard="warns"),
    shown("deepspeed module", "DeepSpeed", guard="warns"),
]
TRAPS = [
    shown("accelerate unpatched", "Accelerate", guard="warns without the adapter"),
    shown("trainer unpatched", "transformers", guard="warns without the adapter"),
    shown("ignite unpatched", "ignite", guard="warns without the adapter"),
]


@pytest.mark.parametrize("words", TRAPS)
def test_trap_is_warned_of_with_the_remedy(words: str) -> None:
    ran = start(TORCHRUN, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first != second, "the framework knows hccl by now: the guard can forget this trap"
    assert ran.stderr.count(WARNING) == 1, ran.stderr
    name = NAMES[words.split()[0]]
    assert f"{name} trains here and works as if each rank were alone: use " in ran.stderr


@pytest.mark.parametrize("words", MISUSED)
def test_ranks_that_train_alone_are_warned_of_with_the_remedy(words: str) -> None:
    ran = start(LAUNCH, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first != second
    assert ran.stderr.count(WARNING) == 1, ran.stderr
    assert REMEDIES[words] in ran.stderr


@pytest.mark.shows("Accelerate", "guard", "warns without the adapter")
def test_trap_is_an_error_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_GUARD", "error")
    ran = start(TORCHRUN, "accelerate unpatched")
    assert ran.returncode != 0
    assert "the ranks train copies" in ran.stderr


GOOD = [
    shown("accelerate local_sgd", "Accelerate", data_parallel="yes"),
    shown("trainer group", "transformers", data_parallel="yes"),
    shown("deepspeed hccl 0", "DeepSpeed", data_parallel="yes"),
    shown("deepspeed hccl 1", "DeepSpeed", sharded="ZeRO 1"),
]
ADAPTED = [
    shown("accelerate backend", "Accelerate", adapter='`backend="hccl"`'),
    shown("accelerate group", "Accelerate", adapter='`backend="hccl"`'),
    shown("trainer backend", "transformers", adapter='`ddp_backend="hccl"`'),
    shown("trainer deepspeed", "transformers", sharded="DeepSpeed ZeRO 1"),
    shown("ignite group", "ignite", adapter='`backend="hccl"`'),
]


@pytest.mark.parametrize("words", GOOD)
def test_good_job_is_quiet(words: str) -> None:
    ran = start(LAUNCH, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert WARNING not in ran.stderr
    # The last steps of LocalSGD are each rank's own.
    assert first == second or "local_sgd" in words


@pytest.mark.parametrize("words", ADAPTED)
def test_job_that_would_be_a_trap_is_right(words: str) -> None:
    ran = start(TORCHRUN, words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first == second
    assert WARNING not in ran.stderr


SHIMMED = [
    shown("accelerate backend", "Gaudi's programs, torch", data_parallel="yes"),
    shown("deepspeed hccl 1", "Gaudi's programs, torch", sharded="DeepSpeed ZeRO 1"),
]


@pytest.mark.parametrize("words", SHIMMED)
def test_framework_takes_the_cpu_under_the_shim(words: str) -> None:
    ran = start((*LAUNCH, "--habana-shim"), words)
    first, second = models(ran, "ProcessGroupHccl hccl")
    assert first == second
    assert WARNING not in ran.stderr


REFUSED = {
    "accelerate fsdp": "ValueError: Accelerate would ignore fsdp_plugin and use DDP here: ",
    # Under hccl-launch, which sets ACCELERATE_USE_CPU.
    "trainer deepspeed": "ValueError: Accelerate would ignore deepspeed_plugin and use DDP here: ",
}


@pytest.mark.parametrize(
    "words",
    [
        shown("accelerate fsdp", "Accelerate", sharded="no: FSDP plug-in is refused on the CPU"),
        shown("trainer deepspeed", "transformers", sharded="DeepSpeed ZeRO 1"),
    ],
)
def test_plugin_that_would_be_ignored_is_refused(words: str) -> None:
    ran = start(LAUNCH, words)
    assert ran.returncode != 0
    assert REFUSED[words] in ran.stderr


SWAPPED = [
    shown("accelerate cpu", "Accelerate", replace_gloo="yes"),
    shown("trainer cpu", "transformers", replace_gloo="yes"),
    shown("tensor_parallel", "transformers", replace_gloo="yes"),
    shown("ignite parallel", "ignite", replace_gloo="yes"),
    shown("monai", "MONAI", replace_gloo="yes"),
    shown("lightning ddp", "Lightning", replace_gloo="yes"),
    shown("deepspeed gloo 1", "DeepSpeed", replace_gloo="yes"),
    shown("deepspeed gloo 3", "DeepSpeed", replace_gloo="yes"),
]


@pytest.mark.parametrize("words", SWAPPED)
def test_program_for_gloo_runs_on_hccl_and_trains_the_same(words: str) -> None:
    ran = start((*LAUNCH, "--replace-gloo"), words)
    ours = models(ran, "ProcessGroupHccl gloo")
    assert (ran.stdout + ran.stderr).count("HCCL_REPLACE=gloo: hccl carries CPU tensors") == 1
    assert WARNING not in ran.stderr
    theirs = models(start(LAUNCH, words), "ProcessGroup gloo")
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.shows("transformers", "--replace-gloo")
def test_trainer_with_deepspeed_shards_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gloo each rank would train on all of it. The program asserts that it does not."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")  # else Accelerate drops DeepSpeed
    ran = start((*LAUNCH, "--replace-gloo"), "trainer deepspeed_gloo")
    first, second = models(ran, "ProcessGroupHccl gloo")
    assert first == second


@pytest.mark.shows("Accelerate", "--replace-gloo")
def test_debug_launcher_of_accelerate_runs_on_hccl(monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS / "accelerate_job.py"
    theirs = models(
        run(sys.executable, program, "debug_launcher", limit_s=LIMIT_S), "ProcessGroup gloo"
    )
    monkeypatch.setenv("HCCL_REPLACE", "gloo")
    ours = models(
        run(sys.executable, program, "debug_launcher", limit_s=LIMIT_S), "ProcessGroupHccl gloo"
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
