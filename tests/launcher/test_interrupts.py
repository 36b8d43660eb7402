"""A signal ends the launcher at once while it waits for something that no signal interrupts."""

import os
import signal
import sys
from pathlib import Path
from random import Random

import pytest
from launching import COMMAND, job, run
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


DEAF = """
import os, signal, socket, threading, time
def look_up(*_, **__):
    # Python's handler is for the main thread, whose sleep this signal does not end.
    while "futex" not in open(f"/proc/{os.getpid()}/wchan").read(): time.sleep(0.001)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(1000)
socket.getaddrinfo = look_up
"""


def test_signal_while_the_main_thread_falls_asleep_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = run(*COMMAND, "--nnodes", "1:2", "--rdzv-endpoint", "node:29400", sleeps(tmp_path))
    assert (ended.returncode, ended.stderr) == (130, "hccl-launch: stopped by SIGINT\n")


IMPORTS = """
import os, signal, sys
from hccl_py.launcher.main import command
class Finder:
    def find_spec(name, *_):
        if name == "hccl_py.launcher.parts.over_ssh":
            try: os.kill(os.getpid(), signal.SIGTERM)
            except BaseException: pass  # as in the callback of an import's lock
sys.meta_path.insert(0, Finder)
command()
"""


def test_signal_in_an_import_is_not_lost(tmp_path: Path) -> None:
    command = sys.executable, "-c", IMPORTS, "--hosts", "127.0.0.1:1", sleeps(tmp_path)
    ended = run(*command)
    assert (ended.returncode, ended.stderr) == (143, "hccl-launch: stopped by SIGTERM\n")


MOMENTS = """
import os, signal, sys
from hccl_py.launcher.main import command
me, moment, number, calls = os.getpid(), int(sys.argv.pop(1)), int(sys.argv.pop(1)), 0
def trace(*_):
    global calls
    if os.getpid() == me:
        calls += 1
        if calls == moment: os.kill(me, number)
def exit_after(code, leave=os._exit):
    os.write(1, str(calls).encode() if os.getpid() == me else b"")
    leave(code)
os._exit = exit_after
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command handles it
sys.settrace(trace)
command()
"""


@pytest.mark.nightly("launchers")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", ["--nproc 2", "--hosts 127.0.0.1:1", "--role x --standalone"])
def test_signal_at_any_call_ends_the_command(tmp_path: Path, options: str) -> None:
    """Before its job runs and meanwhile; the calls are those of the process that gets it."""
    path = tmp_path / "script.py"
    path.write_text("pass\n")
    random = Random(1)

    def calls_of(moment: int, number: int) -> tuple[int, str]:
        done = run(sys.executable, "-c", MOMENTS, moment, number, *options.split(), path)
        return done.returncode, done.stdout

    code, calls = calls_of(0, 0)
    assert code == 0
    for _ in range(60):
        moment, number = random.randrange(40, int(calls) - 1000), random.choice([2, 15])
        code, made = calls_of(moment, number)
        has_ended = moment > int(made or 0) - 1000  # the last calls clean up after the job
        assert code == 128 + number or (code == 0 and has_ended), f"at call {moment} of {made}"


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
