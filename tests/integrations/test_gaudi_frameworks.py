"""Optimum Habana and lightning-habana from their wheels, with the shim."""

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from launching import launch

PROGRAM = Path(__file__).parent / "programs/gaudi_trainer_job.py"
LIMIT_S = 500.0

pytestmark = [
    pytest.mark.nightly("gaudi"),
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.usefixtures("environment"),
]


@pytest.fixture
def optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("optimum-habana")
    monkeypatch.chdir(tmp_path)
    # Optimum runs the command `pip`.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def needs(distribution: str) -> None:
    try:
        version(distribution)
    except PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: .ci/nightly gaudi has it")


def models(ranks: int, batch_per_rank: int) -> list[float]:
    ran = launch("--habana-shim", "--nproc", ranks, PROGRAM, batch_per_rank, limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "hccl: warning" not in ran.stderr
    found = re.findall(r"model (\S+) group ProcessGroupHccl hccl", ran.stdout)
    assert len(found) == ranks, ran.stdout
    return [float(value) for value in found]


@pytest.mark.usefixtures("optimum")
def test_trainer_of_optimum_trains_the_model_of_one_process() -> None:
    first, second = models(2, 4)
    assert first == second
    assert first == pytest.approx(*models(1, 8), abs=1e-5)


def test_lightning_habana_is_imported(tmp_path: Path) -> None:
    needs("lightning-habana")
    script = tmp_path / "program.py"
    script.write_text(
        "import lightning_habana\n"
        "device = lightning_habana.HPUAccelerator\n"
        "assert lightning_habana.HPU_AVAILABLE and device.auto_device_count() == 1\n"
        "assert device().get_device_stats('hpu')['InUse'] > 0\n"
    )
    ran = launch("--habana-shim", script, limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stderr
