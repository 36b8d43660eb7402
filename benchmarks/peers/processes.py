"""The processes of a start: they run side by side, end together, and print into one log."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_START_S = 180.0
_GRACE_S = 5.0
_PERIOD_S = 0.02
_CHECK_S = 60.0
_LOG_TAIL = 400

# Open MPI runs as root only with these two; no other program reads them.
ROOT_MAY = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}


class StartError(Exception):
    """A start failed; the message has the reason and the end of its output."""


def run_all(
    commands: Sequence[tuple[list[str], dict[str, str]]], seconds: float, folder: Path
) -> str:
    """Run commands side by side, with variables of their own; return what they print.

    Args:
        commands: with their variables.
        seconds: expected time after their start; the timeout is ten times that.
        folder: for their output.

    Raises:
        StartError: one failed, or not all ended in time. No process remains.
    """
    allowed_s = _START_S + 10 * seconds
    deadline = time.monotonic() + allowed_s
    log = folder / "log"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as output:
            for command, environment in commands:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # A process group, so that children are killed too. Not a session: each would
                    # be a scheduling group (autogroup), but the ranks of an mpiexec share one.
                    preexec_fn=os.setpgrp,
                )
                processes.append(process)
        while any(process.poll() is None for process in processes):
            now_s = time.monotonic()
            if any(process.returncode for process in processes):
                deadline = min(deadline, now_s + _GRACE_S)  # the others may wait for the failed one
            if now_s > deadline:
                break
            time.sleep(_PERIOD_S)
        codes = [process.returncode for process in processes]
    finally:
        _end(processes)
    text = log.read_text(errors="replace")
    if codes != [0] * len(codes):
        how = f"exit codes {codes}" if any(codes) else f"not all ended within {allowed_s:g} s"
        raise StartError(f"{how}: {end_of(text)}")
    return text


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate what still runs, so that mpiexec ends its ranks, then kill what remains."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def output_of(
    *command: str, timeout_s: float = _CHECK_S, environment: Mapping[str, str] | None = None
) -> str:
    """Return what a command prints; raise StartError if it fails."""
    every = {**os.environ, **ROOT_MAY, **(environment or {})}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=every, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(str(error)) from None
    if ended.returncode != 0:
        raise StartError(f"{command[0]} failed: {end_of(ended.stderr)}")
    return ended.stdout.strip()


def end_of(log: str) -> str:
    """Return the end of a program's output in one line."""
    return " ".join(log.split())[-_LOG_TAIL:]
