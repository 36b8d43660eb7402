"""The line for the shell of another host, run by this machine's sh."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts import remote_shell

HERE = {"PYTHONPATH": str(Path(__file__).parent)}
AWKWARD = 'it\'s "a" $HOME `id` \\ folder; exit 5 #'


def run(
    folder: Path | str,
    python: Path | str = sys.executable,
    environment: Mapping[str, str] = HERE,
) -> subprocess.CompletedProcess[bytes]:
    line = remote_shell.script(str(folder), str(python), "stand_in_agent", environment)
    words = ["sh", "-c", remote_shell.COMMAND]
    return subprocess.run(
        words, input=f'{line}\n{{"node": 1}}\n'.encode(), capture_output=True, timeout=60
    )


def lack(done: subprocess.CompletedProcess[bytes], folder: Path | str, python: Path | str) -> str:
    assert remote_shell.BEGINS not in done.stderr
    last = done.stderr.decode().splitlines()[-1] if done.stderr else ""
    told = remote_shell.explain(done.returncode, last, str(folder), str(python))
    assert told is not None
    return told


def test_agent_gets_the_rest_of_stdin_whatever_its_paths_are(tmp_path: Path) -> None:
    folder = tmp_path / AWKWARD
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = {**HERE, "LD_LIBRARY_PATH": AWKWARD, "HCCL_DEBUG": "left to the agent"}
    done = run(folder, "./python", environment)
    before, mark, after = done.stderr.partition(remote_shell.BEGINS)
    assert (done.returncode, before, bool(mark), after) == (0, b"", True, b"the agent is up\n")
    told = json.loads(done.stdout)
    assert told["told"] == {"node": 1}
    assert told["LD_LIBRARY_PATH"] == AWKWARD
    assert told["PWD"] == "/"
    assert "HCCL_DEBUG" not in told


def test_missing_folder_or_python_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert f"working directory {missing};" in lack(run(missing), missing, "")
    assert f"no Python {missing};" in lack(run(tmp_path, missing), tmp_path, missing)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("echo 0.0.1", "has hccl-py 0.0.1, not "),
        ("echo ModuleNotFoundError: hccl_py >&2; exit 1", "cannot import hccl-py (ModuleNotFound"),
    ],
)
def test_python_without_this_hccl_py_is_named(tmp_path: Path, answer: str, problem: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    assert problem in lack(run(tmp_path, python), tmp_path, python)


def test_line_break_in_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="no line breaks"):
        remote_shell.script("/a\nb", "python3", "m", {})
