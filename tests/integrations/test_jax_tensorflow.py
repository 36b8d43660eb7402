"""JAX, TensorFlow and Keras from their wheels, in programs and under a launcher without torch.

A sitecustomize makes every `import torch` fail, in hccl-launch too. One test has hccl-py's wheel in
environments where torch is not installed.
"""

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from launching import run
from matrix import shown

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


def launch(ranks: int, program: Path, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Run a job to its end and return what it printed."""
    launcher = "hccl_py.launcher.main", "--prefix", "never", "--nproc", ranks, *options
    ran = run(PYTHON, "-m", *launcher, program, *arguments, limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def survivors(ranks: int, program: Path, *arguments: str) -> tuple[list[int], list[str]]:
    """Run ranks, some of which may die, to their ends; return exit codes and what was printed."""
    place = {"WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [
        subprocess.Popen(
            [PYTHON, program, *arguments],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [each.communicate(timeout=LIMIT_S)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    return [each.returncode for each in running], printed


@pytest.mark.parametrize(
    "job",
    [
        shown("jax_job.py values", "JAX", adapter="`integrations.jax`"),
        *("jax_job.py collectives", "jax_job.py slopes", "jax_job.py overlap", "jax_job.py order"),
        *("jax_job.py leave", "jax_job.py differ", "jax_job.py close", "jax_job.py interrupt"),
        shown("tensorflow_job.py", "TensorFlow", adapter="`integrations.tensorflow`"),
        shown("horovod_tensorflow_job.py", "TensorFlow", adapter="`hccl_py.horovod.tensorflow`"),
    ],
)
def test_collectives_of_a_program(job: str) -> None:
    program, *arguments = job.split()
    printed = launch(2, PROGRAMS / program, *arguments)
    assert sorted(printed.splitlines()) == ["rank 0 is done", "rank 1 is done"]


@pytest.mark.parametrize("case", ["collectives", "slopes", "order"])
def test_collectives_of_jax_among_three_ranks(case: str) -> None:
    printed = launch(3, PROGRAMS / "jax_job.py", case)
    assert sorted(printed.splitlines()) == [f"rank {rank} is done" for rank in range(3)]


def test_killed_rank_is_named_by_the_programs_of_the_others() -> None:
    codes, printed = survivors(3, PROGRAMS / "jax_job.py", "kill")
    assert codes == [0, 0, -signal.SIGKILL], printed
    assert "rank 0 is done" in printed[0] and "rank 1 is done" in printed[1]


SMALL_PAGES, LARGE_PAGES = {}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MOST = 1.2
"""Time of a call in a program, in times of the same call of a Communicator."""


@pytest.mark.parametrize(
    ("compared", "environment"),
    [(("jit", "new"), SMALL_PAGES), (("donated", "in place"), LARGE_PAGES)],
    ids=["a new result", "in place"],
)
def test_large_sum_in_a_program_is_about_as_fast_as_of_a_communicator(
    compared: tuple[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ratios = []
    for _ in range(3):  # the machine has other work too
        printed = launch(2, PROGRAMS / "jax_job.py", "speed")
        times = dict(re.findall(r"([a-z][a-z ]+): ([\d.]+)", printed))
        ratios.append(float(times[compared[0]]) / float(times[compared[1]]))
        if ratios[-1] <= MOST:
            break
    assert min(ratios) <= MOST, ratios


def test_jax_with_one_thread_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "1")  # how many threads JAX has
    launch(2, PROGRAMS / "jax_job.py", "overlap")


TRAINED = [
    shown("train_jax.py", "JAX", data_parallel="in `jax.jit`"),
    shown("train_tensorflow.py", "TensorFlow", data_parallel="in `tf.function`"),
]


@pytest.mark.parametrize("example", TRAINED)
def test_example_trains_as_one_process_does(example: str) -> None:
    alone, both = (results(launch(ranks, EXAMPLES / example), ranks) for ranks in (1, 2))
    assert both == pytest.approx(alone, rel=1e-4)


def results(printed: str, ranks: int) -> list[float]:
    """Return the loss and the parameters' sum, which have to be those of each rank."""
    found = re.findall(r"rank (\d) of \d: loss (\S+) sum (\S+)", printed)
    assert sorted(rank for rank, _, _ in found) == list("01"[:ranks]), printed
    assert len({(loss, total) for _, loss, total in found}) == 1, printed
    return [float(value) for value in found[0][1:]]


FOR_GAUDI = """
from habana_frameworks.tensorflow import load_habana_module

load_habana_module()
"""


@pytest.mark.shows("Gaudi's programs, TensorFlow", "data parallel")
@pytest.mark.shows("Gaudi's programs, TensorFlow", "adapter", "`--habana-shim`")
def test_program_for_gaudi_trains_as_one_process_does(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOR_GAUDI + (EXAMPLES / "train_tensorflow.py").read_text())
    alone, both = (
        results(launch(ranks, program, options=("--habana-shim",)), ranks) for ranks in (1, 2)
    )
    assert both == pytest.approx(alone, rel=1e-4)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build hccl-py's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = "-m", "pip", "wheel", "-q", "--no-deps", "-C", f"build-dir={folder / 'build'}"
    subprocess.run([PYTHON, *pip, "-w", folder, ROOT], check=True, timeout=3 * LIMIT_S)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.timeout(4 * LIMIT_S)  # the wheel is compiled
@pytest.mark.parametrize("example", TRAINED)
def test_wheel_runs_where_torch_is_not_installed(
    example: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    extra = example[len("train_") : -len(".py")]
    framework = [each.split(";")[0] for each in requires("hccl-py") or () if f'"{extra}"' in each]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=LIMIT_S)
    executables = tmp_path / "venv" / "bin"
    pip = [executables / "python", "-m", "pip", "install", "-q", "-c", ROOT / ".ci/constraints.txt"]
    subprocess.run([*pip, wheel, *framework], check=True, timeout=LIMIT_S)
    torch = [executables / "python", "-c", "import torch"]
    assert b"No module named 'torch'" in subprocess.run(torch, capture_output=True).stderr
    ran = run(executables / "hccl-launch", "--nproc", 2, EXAMPLES / example, limit_s=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results(ran.stdout, 2)


@pytest.mark.shows("Keras", "data parallel", "`model.fit`")
@pytest.mark.shows("Keras", "adapter", "`hccl_py.horovod.keras`")
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
    codes, (first, _, last) = survivors(3, PROGRAMS / "horovod_elastic_job.py")
    assert codes == [0, -signal.SIGKILL, 0], first + last
    # Killed in the sixth of ten steps, two after the last commit.
    assert re.match(r"began \[\(3, 0\), \(2, 4\)\] ended 14 model \S+", first.splitlines()[-1])
    assert first.splitlines()[-1] == last.splitlines()[-1]
