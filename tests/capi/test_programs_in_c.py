"""The C API, by programs in C that check every result themselves."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from programs import FAILURES, HERE, INCLUDE, LIB, compiled, run_ranks
from tiers import by_night

EXAMPLES = HERE.parents[1] / "examples" / "c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def expect_success(ended: list[tuple[int, str]], said: str) -> None:
    assert all(code == 0 and said in output for code, output in ended), ended


@pytest.mark.parametrize("name", ["collectives", "errors", "communicators", "synapse"])
@pytest.mark.parametrize("num_ranks", [2, *by_night("calls", 4)])
def test_program_finds_every_result_right(
    name: str, num_ranks: int, folder: Path, tmp_path: Path
) -> None:
    program = compiled(HERE / f"{name}.c", folder)
    expect_success(run_ranks([program], num_ranks, tmp_path), "is right")


@pytest.mark.parametrize("case", FAILURES)
def test_failure_has_its_code_and_its_text_on_all_ranks(
    case: str, folder: Path, tmp_path: Path
) -> None:
    program = compiled(HERE / "failures.c", folder)
    *others, (code, output) = run_ranks([program, case], 3, tmp_path)
    expect_success(others, "is right")
    assert code == (-signal.SIGKILL if case in ("killed", "polled") else 0), output


AVERAGE, SUM = "1.5", "[2.0, 4.0, 6.0, 1.0]"
LANGUAGES = [
    *(("cc", (flag,), "all_reduce.c", "2 4 6 1") for flag in ("-std=c99", "-std=c17")),
    *by_night("calls", ("c++", ("-x", "c++"), "all_reduce.c", "2 4 6 1")),
    *by_night("calls", ("c++", ("-std=c++17",), "all_reduce.cc", AVERAGE)),
]


@pytest.mark.parametrize(("name", "flags", "example", "printed"), LANGUAGES)
def test_example_prints_the_sum(
    name: str, flags: tuple[str, ...], example: str, printed: str, folder: Path, tmp_path: Path
) -> None:
    program = compiled(EXAMPLES / example, folder, name=name, flags=("-Wall", "-Wextra", *flags))
    expect_sums(program, printed, tmp_path)


@pytest.mark.nightly("calls")
def test_example_in_rust_prints_the_sum(tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("there is no rustc")
    program = tmp_path / "all_reduce"
    words = ["rustc", EXAMPLES / "all_reduce.rs", "-L", LIB, "-l", "hccl", "-o", program]
    subprocess.run(words, check=True)
    expect_sums(program, SUM, tmp_path)


@pytest.mark.nightly("calls")
def test_example_in_go_prints_the_sum(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no go")
    program = tmp_path / "all_reduce"
    flags = {"CGO_CFLAGS": f"-I{INCLUDE}", "CGO_LDFLAGS": f"-L{LIB} -lhccl"}
    own = {"GOCACHE": str(tmp_path / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "1"}
    words = ["go", "build", "-o", program, EXAMPLES / "all_reduce.go"]
    subprocess.run(words, check=True, env={**os.environ, **flags, **own})
    expect_sums(program, "[2 4 6 1]", tmp_path)


def expect_sums(program: Path, printed: str, at: Path) -> None:
    environment = {
        "HCCL_COMM_ID": f"127.0.0.1:{free_port()}",
        "HCCL_SECRET": "0123456789abcdef" * 4,
        "LD_LIBRARY_PATH": str(LIB),
    }
    ended = run_ranks([program], 2, at, environment)
    assert ended == [(0, f"rank {rank} of 2: {printed}\n") for rank in range(2)]


def test_debugging_prints_the_text_of_an_error(folder: Path, tmp_path: Path) -> None:
    program = compiled(HERE / "errors.c", folder)
    ended = run_ranks([program], 2, tmp_path, {"HCCL_DEBUG": "1"})
    expect_success(ended, "libhccl: hcclReduce: root: expected a rank of 0..1, got -1")
