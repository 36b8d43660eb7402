"""A rank's script runs as under plain python; its last exception goes on record."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quiet_clock import HANG_S

from hccl_py.launcher import worker


def run_worker(*arguments: object, **env: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, worker.__file__, *map(str, arguments)],
        env={**os.environ, **{name: str(value) for name, value in env.items()}},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HCCL_PROGRESS_FILE", str(tmp_path / "progress"))  # as the agent sets it
    return tmp_path / "error.json"


def test_script_is_main_and_can_spawn_processes(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    (tmp_path / "neighbour.py").write_text("number = 6")
    path.write_text(
        "import multiprocessing, sys, neighbour\n"
        "def double(value): return 2 * value\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [neighbour.number]), sys.argv, __file__)\n"
    )
    done = run_worker(path, "-x")
    assert done.stdout == f"[12] {[str(path), '-x']} {path}\n", done.stderr


def test_exception_is_recorded_in_elastics_format(tmp_path: Path, error_file: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    path = tmp_path / "script.py"
    path.write_text("def deep():\n    raise KeyError('weight')\ndeep()\n")
    done = run_worker(path, TORCHELASTIC_ERROR_FILE=error_file)
    assert (done.returncode, done.stderr) == (1, "")
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(error_file))
    message: Any = failure.message
    assert message["message"] == "KeyError: 'weight'"
    lines = message["extraInfo"]["py_callstack"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 3, in <module>'
    assert lines[-1] == "KeyError: 'weight'"


def test_syntax_error_names_file_and_line(tmp_path: Path, error_file: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("x = (\n")
    run_worker(path, TORCHELASTIC_ERROR_FILE=error_file)
    text = json.loads(error_file.read_text())["message"]["extraInfo"]["py_callstack"]
    assert f'File "{path}", line 1' in text
    assert "runpy" not in text


@pytest.mark.parametrize(
    ("statement", "exit_code"),
    [
        ("sys.exit(3)", 3),
        ("raise SystemExit(True)", 1),
        ("sys.exit(2**64 + 3)", 255),
        ("sys.exit(-(2**70))", 255),
        ("sys.exit(type('Unshown', (), {'__str__': lambda _: 1 / 0})())", 1),
    ],
)
def test_exit_code_is_recorded_before_the_interpreter_ends(
    tmp_path: Path, error_file: Path, statement: str, exit_code: int
) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"import atexit, os, sys\natexit.register(os._exit, 9)\n{statement}")
    assert run_worker(path, TORCHELASTIC_ERROR_FILE=error_file).returncode == 9
    message = json.loads(error_file.read_text())["message"]
    assert message["extraInfo"]["exit_code"] == exit_code
    assert ("Unshown" in message["message"]) == ("Unshown" in statement)


def test_interrupt_is_recorded_and_ends_the_process_as_the_signal(
    tmp_path: Path, error_file: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    done = run_worker(path, TORCHELASTIC_ERROR_FILE=error_file)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert json.loads(error_file.read_text())["message"]["extraInfo"]["exit_code"] == -2


def test_error_of_the_library_is_recorded_once_and_ends_with_the_users_line(
    tmp_path: Path, error_file: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "from hccl_py import InvalidArgumentError, ReduceOp\n"
        "def call():\n"
        "    try:\n"
        "        1 / 0\n"
        "    except ZeroDivisionError as error:\n"
        "        raise InvalidArgumentError(str(error)) from error\n"
        "call()\n"
    )
    run_worker(path, TORCHELASTIC_ERROR_FILE=error_file)
    text = json.loads(error_file.read_text())["message"]["extraInfo"]["py_callstack"]
    assert text.count("division by zero") == 1
    assert text.splitlines()[-1].endswith("InvalidArgumentError: division by zero")
    assert text.splitlines()[-2].strip() == "raise InvalidArgumentError(str(error)) from error"
