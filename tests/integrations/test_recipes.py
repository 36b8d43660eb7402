"""The examples of examples/frameworks that need torch alone, or Ray."""

import re
import sys
from pathlib import Path

import pytest
from launching import launch, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 500.0

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")  # equal lines of two workers are what it asks for


def test_checkpoint_is_saved_beside_training() -> None:
    ran = launch("--nproc", 2, EXAMPLES / "dcp_async_save.py", limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("loaded what was saved") == 2


@pytest.mark.shows("Horovod's programs, torch", "data parallel")
@pytest.mark.shows("Horovod's programs, torch", "adapter", "`hccl_py.horovod.torch`")
def test_horovod_program_learns() -> None:
    ran = launch("--nproc", 2, EXAMPLES / "horovod.py", limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    losses = [float(loss) for loss in re.findall(r"on 2 ranks: loss (\S+)", ran.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2


@pytest.mark.shows("Ray Train", "data parallel")
def test_ray_train_ends_with_equal_parameters() -> None:
    check_ray(EXAMPLES / "train_ray.py")


@pytest.mark.shows("Ray Train", "--replace-gloo")
def test_ray_train_for_gloo_runs_on_hccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (EXAMPLES / "train_ray.py").read_text()
    assert (gloos := source.replace('TorchConfig(backend="hccl")', "TorchConfig()")) != source
    (tmp_path / "program.py").write_text(gloos)
    monkeypatch.setenv("HCCL_REPLACE", "gloo")
    check_ray(tmp_path / "program.py")


@pytest.mark.shows("Ray Train", "adapter", "`integrations.ray` for `ray.util.collective`")
def test_ray_collectives_are_those_of_numpy() -> None:
    ran = run(sys.executable, PROGRAMS / "ray_collective.py", limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    refused = "allreduce_multigpu broadcast_multigpu reduce_multigpu"
    assert ran.stdout.splitlines()[-3:] == [refused, refused, "all right"]


def check_ray(program: Path) -> None:
    """Have two workers train on hccl, and end with equal parameters."""
    ran = run(sys.executable, program, limit_s=LIMIT_S)
    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed
    found = re.findall(r"RayTrainWorker pid=(\d+)\S* model (\S+) group (\w+)", printed)
    assert len({worker for worker, _, _ in found}) == 2, printed
    assert {group for _, _, group in found} == {"ProcessGroupHccl"}, found
    assert len({total for _, total, _ in found}) == 1, found
