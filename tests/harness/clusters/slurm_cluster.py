"""Slurm on this host, with nodes that exist by name only: Debian's slurmd can be several of them.

    def test_tasks(slurm: dict[str, str]) -> None:
        subprocess.run(["srun", "-n", "4", ...], env=slurm)

The nodes are called 127.0.0.1, 127.0.0.2 and so on, so their names resolve. All state lies in the
folder; nothing is written to /etc.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "munged")
_LIMIT_S = 30.0
_NUM_NODES = 4
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=127.0.0.[1-{num_nodes}] NodeHostname={host} NodeAddr=127.0.0.1 \
Port=[{first}-{last}] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=YES
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run Slurm for a file of tests; hand out the environment in which its commands find it."""
    if reason := _why_not():
        pytest.skip(reason)
    with _slurm_cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def _why_not() -> str | None:
    """Say why Slurm cannot run here; None if it can."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge"
        return f"no {', '.join(missing)} (apt-get install --no-install-recommends {packages})"
    return "Slurm's daemons need root" if os.geteuid() else None


@contextmanager
def _slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    folder.chmod(0o755)
    for name in ("munge", "state", *(f"spool.127.0.0.{at + 1}" for at in range(_NUM_NODES))):
        (folder / name).mkdir(mode=0o755)
    port = _free_ports(_NUM_NODES + 1)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # there is no systemd
    ports = {"port": port, "first": port + 1, "last": port + _NUM_NODES}
    host = socket.gethostname()
    configuration = _CONFIGURATION.format(folder=folder, host=host, num_nodes=_NUM_NODES, **ports)
    (folder / "slurm.conf").write_text(configuration)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    try:
        _start(folder, environment)
        yield environment
    finally:
        daemons = [int(file.read_text()) for file in folder.glob("**/*pid")]
        for pid in daemons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in daemons:
            _await_end(pid)


def _start(folder: Path, environment: dict[str, str]) -> None:
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    options = [f"--{option}={folder}/munge/{name}" for option, name in files.items()]
    commands = [["munged", "--force", *options, f"--seed-file={folder}/munge/seed"]]
    commands += [["slurmctld", "-c"]]
    commands += [["slurmd", "-N", f"127.0.0.{at + 1}"] for at in range(_NUM_NODES)]
    for command in commands:
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_LIMIT_S)
    deadline_s = time.monotonic() + _LIMIT_S
    while (states := _states(environment)) != "idle":
        assert time.monotonic() < deadline_s, f"nodes are {states!r} after {_LIMIT_S} s"
        time.sleep(0.1)


def _states(environment: dict[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
    )
    return " ".join(sorted(set(done.stdout.split()))) or done.stderr.strip()


def _await_end(pid: int) -> None:
    with suppress(ProcessLookupError):
        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free now."""
    for first in range(21_000, 30_000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("0.0.0.0", port))
            return first
    raise OSError("no ports are free")
