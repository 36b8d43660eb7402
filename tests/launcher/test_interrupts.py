"""A signal ends the launcher at once while it waits for something that no signal interrupts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from launching import COMMAND, job
from quiet_clock import HANG_S
from thread_ranks import wait_until
from tiers import by_night

STUCK = """
import ctypes, os, socket
def look_up(*_, **__):
    # As the resolver: no signal ends the wait of this thread.
    os.write(2, b"looks up\\n")
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2): ctypes.CDLL(None).pthread_mutex_lock(mutex)
socket.getaddrinfo = look_up
"""
POD = {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "node"}


@pytest.mark.parametrize("number", [signal.SIGINT, *by_night("launchers", signal.SIGTERM)])
@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("--nnodes 2 --node-rank 1 --master-addr node", {}),
        ("--nnodes 1:2 --rdzv-endpoint node:29400", {}),
        ("--hosts node:1,other:1", {}),
        ("", POD),
        *by_night(
            "launchers",
            ("--nnodes 2 --node-rank 0 --master-addr node", {}),
            ("--nnodes 2 --rdzv-endpoint node:29400", {}),
        ),
    ],
)
def test_signal_ends_the_wait_for_a_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    variables: dict[str, str],
    number: signal.Signals,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with job(*COMMAND, *options.split(), sleeps(tmp_path)) as process:
        assert process.stderr is not None
        while "looks up\n" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + number, err
    assert f"hccl-launch: stopped by {number.name}\n" in err
    assert list(tmp_path.glob("hccl_launch_*")) == []


@pytest.mark.parametrize("stage", ["-G", "-T"])
def test_signal_ends_ssh_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\n[ "$1" != {stage} ] || {{ touch "$0.hangs"; sleep 1000; }}\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=os.pathsep)
    with job(*COMMAND, "--hosts", "192.0.2.1:1,192.0.2.2:1", sleeps(tmp_path)) as process:
        wait_until(Path(f"{ssh}.hangs").exists, "ssh hangs", HANG_S)
        process.terminate()
        process.communicate(timeout=HANG_S)  # what is left is looked for on the way out
    assert process.returncode == 143


def sleeps(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("import time\ntime.sleep(1000)\n")
    return path
