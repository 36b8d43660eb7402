"""What a program outside finds of the C API: by hccl-config, by pkg-config and by CMake."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import INCLUDE, LIB, compiler

COMMAND = Path(sys.executable).with_name("hccl-config")
PROGRAM = """
#include <hccl.h>
#include <stdio.h>
int main(void) {
  int version = 0;
  hcclResult_t result = hcclGetVersion(&version);
  printf("%d %d\\n", (int)result, version);
  return 0;
}
"""


def run(*words: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(x) for x in words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "version.c"
    path.write_text(PROGRAM)
    return path


def test_program_is_linked_by_the_flags_of_the_command(source: Path) -> None:
    flags = run(COMMAND, "--cflags", "--libs", "--synapse").split()
    run(compiler(), source, *flags, "-o", source.with_suffix(""))
    assert run(source.with_suffix("")) == "0 2604\n"


def test_command_without_options_says_what_it_expects() -> None:
    done = subprocess.run([COMMAND], capture_output=True, text=True)
    assert done.returncode == 2 and "expected at least one option" in done.stderr


def test_program_is_linked_by_pkg_config(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config")
    monkeypatch.setenv("PKG_CONFIG_PATH", run(COMMAND, "--pkgconfig-dir").strip())
    flags = run("pkg-config", "--cflags", "--libs", "hccl >= 2.6").split()
    run(compiler(), source, *flags, "-o", source.with_suffix(""))
    assert run(source.with_suffix("")) == "0 2604\n"


def test_program_is_linked_by_cmake(source: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake")
    (source.parent / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(version C)\n"
        "find_package(hccl 2.6 REQUIRED CONFIG)\nadd_executable(version version.c)\n"
        "target_link_libraries(version PRIVATE hccl::hccl hccl::Synapse)\n"
    )
    build = source.parent / "build"
    cmake_dir = run(COMMAND, "--cmake-dir").strip()
    run("cmake", "-S", source.parent, "-B", build, f"-Dhccl_DIR={cmake_dir}")
    run("cmake", "--build", build)
    assert run(build / "version") == "0 2604\n"


@pytest.mark.parametrize(
    ("header", "library", "prefix", "version"),
    [
        ("hccl.h", "libhccl.so", "hccl", "HCCL_2.6"),
        ("synapse_api.h", "libSynapse.so.1", "syn", "SYNAPSE_1"),
    ],
)
def test_library_exports_the_functions_of_its_header_alone(
    header: str, library: str, prefix: str, version: str
) -> None:
    declared = re.findall(rf"\b({prefix}[A-Z]\w*)\(", (INCLUDE / "hccl" / header).read_text())
    symbols = run("nm", "-D", "--defined-only", LIB / library)
    exported = set(re.findall(r" [A-Z] (\S+)$", symbols, re.M))
    assert exported == {version, *(f"{name}@@{version}" for name in declared)}


def test_program_for_gaudi_links_synapse_alone(source: Path) -> None:
    """The Makefiles of such programs name -lSynapse, which has HCCL's functions too."""
    run(compiler(), source, f"-I{INCLUDE / 'hccl'}", f"-L{LIB}", "-lSynapse", "-o", "program",
        f"-Wl,-rpath,{LIB}", cwd=source.parent)  # fmt: skip
    assert run(source.with_name("program")) == "0 2604\n"


def test_library_needs_no_python_to_be_linked() -> None:
    needed = run("readelf", "-d", LIB / "libhccl.so")
    assert "NEEDED" in needed and "python" not in needed


def test_header_is_one_file_that_a_stranger_reads_first() -> None:
    assert len((INCLUDE / "hccl" / "hccl.h").read_text().splitlines()) <= 300
