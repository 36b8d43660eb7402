"""Run hccl-launch as a user does, in a process of its own, and find what it left behind.

`launch` runs a job to its end, in a process that need not import torch's launcher again. `job` and
`run` start the command cold: for what is stopped or killed on its way, and for other commands.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = (sys.executable, "-m", "hccl_py.launcher.main")
LIMIT_S = 100.0
_TAG = "HCCL_TEST_JOB"


@contextmanager
def _environment_that_ends() -> Iterator[dict[str, str]]:
    """Make an environment; on the way out, no process that has it may still run."""
    tag = uuid.uuid4().hex
    try:
        yield {**os.environ, _TAG: tag}
        deadline_s = time.monotonic() + 5.0  # the kernel needs a moment to end what was killed
        while (left := _processes(tag)) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not left, f"still running after the job's end: {left}"
    finally:
        for pid in _processes(tag):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def launch(*arguments: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run a job to its end and return its output; all its processes must have ended in time."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory(prefix="launch-") as folder, _environment_that_ends() as env:
        out, err = Path(folder, "out"), Path(folder, "err")
        job = {"arguments": words, "env": env, "stdout": str(out), "stderr": str(err)}
        answer = _ask(job, limit_s)
        printed = [each.read_text() if each.exists() else "" for each in (out, err)]
        assert answer is not None, f"{words} still ran after {limit_s} s: {printed}"
    code, num_orphans = answer
    assert num_orphans == 0, f"{words} left processes behind: {printed}"
    return subprocess.CompletedProcess(words, code, *printed)


@functools.cache
def _warm_launcher() -> subprocess.Popen[str]:
    warm = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_launcher.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(warm.kill)
    return warm


def _ask(job: dict[str, object], limit_s: float) -> tuple[int, int] | None:
    """Have the warm launcher run a job; None: it did not end, and that launcher was killed."""
    warm = _warm_launcher()
    assert warm.stdin is not None
    assert warm.stdout is not None
    print(json.dumps(job), file=warm.stdin, flush=True)
    if not select.select([warm.stdout], [], [], limit_s)[0]:
        _warm_launcher.cache_clear()
        warm.kill()
        return None
    code, num_orphans = json.loads(warm.stdout.readline())
    return code, num_orphans


def run(*command: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run any command in the same way."""
    with job(*command) as process:
        out, err = process.communicate(timeout=limit_s)
        words = [str(word) for word in command]
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def job(*command: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command; on the way out, nothing that it started may still run."""
    with _environment_that_ends() as env:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()  # what it started ends with the environment
            process.wait()


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
