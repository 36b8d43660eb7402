"""Everything but torch's backend works in an environment where torch is not installed."""

import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from quiet_clock import HANG_S
from tiers import by_night

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGES = ("hccl-py", "numpy", "msgpack", "pyzmq", "networkx")
OLD_PYTHON = ("tomli",) if sys.version_info < (3, 11) else ()
BENCH = ("hccl_py.bench.collective.main", "-g", 2)
LAUNCH = ("hccl_py.launcher.main", "--nproc", 2)
COMMUNICATOR = EXAMPLES / "02_communicator.py"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with links to hccl-py and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for package in PACKAGES + OLD_PYTHON:
        ours = distribution(package)
        for top in {file.parts[0] for file in ours.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(ours.locate_file(top))  # type: ignore[arg-type]
    return folder / "bin" / "python"


def run(python: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S)


def test_torch_is_not_there(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import hccl_py, hccl_py.communicator\nimport torch")
    assert "No module named 'torch'" in run(python, tmp_path, "program").stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ((*LAUNCH, COMMUNICATOR), "every number is right"),
        ((*BENCH, "-n", 2, "--sizes", "4,64K"), "through hccl_py.Communicator"),
        (("hccl_py.lab.plan_command.main", "list"), "all_reduce=ring"),
        *by_night(
            "bench",
            (("hccl_py.launcher.main", "--check"), "not installed"),
            ((*BENCH, "-n", 2, "-d", "float16", "-o", "avg", "--registered"), "registered"),
            ((*BENCH, "--validate", "--sizes", 64), "inside a node: 2 links"),
            ((*BENCH, "--tune", "tuning.json", "--sizes", 64), "wrote tuning.json"),
            (("hccl_py.bench.verbs.main", "--local", "-n", 16), "Write BW"),
        ),
    ],
)
def test_command_works(
    python: Path, tmp_path: Path, words: tuple[object, ...], printed: str
) -> None:
    done = run(python, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        (*BENCH, "--api", "torch"),
        (*BENCH, "--compare", "gloo"),
        (*BENCH, "-d", "bfloat16"),
        ("hccl_py.launcher.main", "--standalone", "--nnodes", "1:2", COMMUNICATOR),
    ],
)
def test_what_needs_torch_says_how_to_get_it(
    python: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    done = run(python, tmp_path, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "torch" in line and "pip install " in line
