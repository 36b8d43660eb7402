"""The wings can be taken off: without any one of them the core's tests pass, and jobs train."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
WINGS = ("bench", "capi", "horovod", "lab")
OF_WINGS = {*WINGS, "benchmarks"}
CORE = [path for path in sorted(TESTS.iterdir()) if path.is_dir() and path.name not in OF_WINGS]
"""Folders of tests that need no wing."""
RUN = "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"
LIMIT_S = 1800.0

pytestmark = [pytest.mark.nightly("wings"), pytest.mark.timeout(2 * LIMIT_S)]


def run(*words: object, cwd: Path = ROOT) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    own = f"build-dir={folder / 'build'}"  # the checkout may have one, of other options
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-C", own, "-w", folder, ROOT)
    (found,) = folder.glob("hccl_py-*.whl")
    return found


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """Install the wheel into an environment that finds all else where this one does."""
    folder = tmp_path / "venv"
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    # After pip, which does not install what it finds there in the same version. Plain paths: the
    # .pth files in them would bring an editable installation.
    outer = [path for path in sys.path if path.endswith("-packages")]
    (site / "outer.pth").write_text("\n".join(outer))
    return site / "hccl_py"


@pytest.mark.parametrize("wing", WINGS)
def test_core_works_without_a_wing(wing: str, installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / wing)
    bin_folder = tmp_path / "venv" / "bin"
    launch = (bin_folder / "hccl-launch", "--nproc-per-node", 2)
    assert "accuracy" in run(*launch, ROOT / "examples" / "01_train_digits.py", cwd=tmp_path)
    (tmp_path / "run.py").write_text(RUN)  # `-m pytest` would find hccl_py/ of the checkout
    options = ("-q", "-n", 2, "--dist", "loadfile", "-p", "no:cacheprovider")
    run(bin_folder / "python", tmp_path / "run.py", *options, *CORE)


def test_emulation_without_the_lab_is_refused(installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "lab")
    command = [tmp_path / "venv/bin/hccl-launch", "--emulate", "cluster.toml", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 2 and "hccl_py.lab" in done.stderr
