"""Run hccl-launch as a user does, in a process of its own, and find what it left behind.

`launch` runs a job to its end, `job` starts one that a test stops or kills on its way, `dry_run`
starts nothing.
"""

import io
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest import mock

from quiet_clock import HANG_S, over_after

from hccl_py.launcher.main import main

COMMAND = (sys.executable, "-m", "hccl_py.launcher.main", "--prefix", "never")
LIMIT_S = HANG_S
_TAG = "HCCL_TEST_JOB"


@contextmanager
def _environment_that_ends() -> Iterator[dict[str, str]]:
    """Make an environment; on the way out, no process that has it may still run."""
    tag = uuid.uuid4().hex
    try:
        yield {**os.environ, _TAG: tag}
        is_over = over_after(5.0)  # the kernel needs a moment to end what was killed
        while (left := _processes(tag)) and not is_over():
            time.sleep(0.02)
        assert not left, f"still running after the job's end: {left}"
    finally:
        for pid in _processes(tag):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def launch(*arguments: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run a job to its end and return its output; all its processes must have ended in time."""
    return run(*COMMAND, *arguments, limit_s=limit_s)


def dry_run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask what a job would do, in this process: it starts nothing, and imports take long."""
    words = ["--prefix", "never", "--dry-run", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def run(*command: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run any command to its end; what it started may not outlive it."""
    with job(*command) as process:
        out, err = process.communicate(timeout=limit_s)
        words = [str(word) for word in command]
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def job(*command: object, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a command; on the way out, nothing that it started may still run.

    It writes to pipes, or to a terminal.
    """
    output = subprocess.PIPE if terminal is None else terminal
    with _environment_that_ends() as env:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
        try:
            yield process
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()  # what it started ends with the environment
            process.wait()


def agent_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of a running job's agent."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Return the process ids of a running job's ranks, by rank."""
    agents = [pid for pid, parent in _parents().items() if parent == process.pid]
    found = {}
    for pid, parent in _parents().items():
        if parent in agents:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                settings = dict(word.partition("=")[::2] for word in words)
                found[int(settings["RANK"])] = pid
    return found


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended between the two looks
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _processes(tag: str) -> dict[int, str]:
    """Return the processes in whose environment the tag is, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # ended between the two looks, or another user's
    return found
