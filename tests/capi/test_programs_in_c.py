"""The C API, by programs in C that check every result themselves."""

import signal
import socket
from collections import Counter
from pathlib import Path

import pytest
from programs import HERE, compiled, run_ranks
from tiers import by_night

EXAMPLE = HERE.parents[1] / "examples" / "c" / "all_reduce.c"
FAILURES = ("mismatch", "mismatch-on-stream", "killed", "abort", "deadline")


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
    assert code == (-signal.SIGKILL if case == "killed" else 0), output


@pytest.mark.parametrize(("name", "flags"), [("cc", ("-std=c99",)), ("c++", ("-x", "c++"))])
def test_example_prints_the_sum(
    name: str, flags: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    program = compiled(EXAMPLE, folder, name=name, flags=("-Wall", "-Wextra", *flags))
    meeting = {"HCCL_COMM_ID": f"127.0.0.1:{free_port()}", "HCCL_SECRET": "0123456789abcdef" * 4}
    ended = run_ranks([program], 2, tmp_path, meeting)
    assert Counter(ended) == Counter((0, f"rank {r} of 2: 2 4 6 1\n") for r in range(2))
