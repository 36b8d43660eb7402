"""JAX, TensorFlow and Keras from their wheels, in programs and under a launcher without torch.

A sitecustomize makes every `import torch` fail, in hccl-launch too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from launching import run

from hccl_py.schedulers.ports import free_port

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "environments" / "jax_tensorflow" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = ROOT / "examples" / "frameworks"
LIMIT_S = 500.0  # TensorFlow takes long to import on a busy machine

WITHOUT_TORCH = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, Finder())
"""

pytestmark = [
    pytest.mark.nightly("jax_tensorflow"),
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(not PYTHON.exists(), reason="made by .ci/nightly jax_tensorflow"),
]


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


def launch(ranks: int, program: Path, *arguments: str) -> str:
    """Run a job to its end and return what it printed."""
    launcher = "hccl_py.launcher.main", "--prefix", "never", "--nproc", ranks
    ran = run(PYTHON, "-m", *launcher, program, *arguments, limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "job",
    [
        *("jax_job.py values", "jax_job.py overlap", "jax_job.py leave", "jax_job.py differ"),
        *("tensorflow_job.py", "horovod_tensorflow_job.py"),
    ],
)
def test_collectives_of_a_program(job: str) -> None:
    program, *arguments = job.split()
    printed = launch(2, PROGRAMS / program, *arguments)
    assert sorted(printed.splitlines()) == ["rank 0 is done", "rank 1 is done"]


def test_jax_with_one_thread_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "1")  # how many threads JAX has
    launch(2, PROGRAMS / "jax_job.py", "overlap")


@pytest.mark.parametrize("example", ["train_jax", "train_tensorflow"])
def test_example_trains_as_one_process_does(example: str) -> None:
    def results(ranks: int) -> list[float]:
        printed = launch(ranks, EXAMPLES / f"{example}.py")
        found = re.findall(r"rank (\d) of \d: loss (\S+) sum (\S+)", printed)
        assert sorted(rank for rank, _, _ in found) == list("01"[:ranks]), printed
        assert len({(loss, total) for _, loss, total in found}) == 1, printed
        return [float(value) for value in found[0][1:]]

    assert results(2) == pytest.approx(results(1), rel=1e-4)


def test_fit_of_keras_trains_as_one_process_does() -> None:
    program = PROGRAMS / "horovod_keras_job.py"
    alone, both = launch(1, program).splitlines(), sorted(launch(2, program).splitlines())
    pattern = r"model (\S+) loss (\S+) rates \[0.1\d*, 0.05\d*, 0.025\d*\]"
    one, first, second = (re.match(pattern, line) for line in (alone[0], *both[:2]))
    assert one and first and second, (alone, both)
    assert first.groups() == second.groups()
    expected = [float(value) for value in one.groups()]
    assert [float(value) for value in first.groups()] == pytest.approx(expected, rel=1e-3)
    assert re.match(r"warmup \[0.075\d*, 0.1\d*, 0.1\d*\]", both[2]), both


def test_fit_of_keras_goes_on_from_the_last_commit_after_a_kill() -> None:
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [PYTHON, PROGRAMS / "horovod_elastic_job.py"]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        first, _, last = (each.communicate(timeout=LIMIT_S)[0] for each in ranks)
        assert [each.returncode for each in ranks] == [0, -signal.SIGKILL, 0], first + last
    finally:
        for each in ranks:
            each.kill()
    # Killed in the sixth of ten steps, two after the last commit.
    assert re.match(r"began \[\(3, 0\), \(2, 4\)\] ended 14 model \S+", first.splitlines()[-1])
    assert first.splitlines()[-1] == last.splitlines()[-1]
