"""Agents on other hosts, over a real ssh: how they start, and end with their connection."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ssh_hosts
from namespaces import call_inside

from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.options import HostOptions, SshOptions
from hccl_py.launcher.hosts.remote_agent import RemoteAgent

pytestmark = pytest.mark.nightly("launchers")

LIMIT_S = 60.0
SECRET = "0123456789abcdef"
HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def hosts() -> Iterator[ssh_hosts.SshHosts]:
    if reason := ssh_hosts.why_not():
        pytest.skip(reason)
    with ssh_hosts.SshHosts() as made:
        yield made


@pytest.fixture
def settings(hosts: ssh_hosts.SshHosts) -> HostOptions:
    return HostOptions((), hosts.ssh, {"PYTHONPATH": HERE}, sys.executable, os.getcwd())


def start(hosts: ssh_hosts.SshHosts, settings: HostOptions, host: Host) -> RemoteAgent:
    """Start an agent from the first host."""
    message = {"secret": SECRET}
    return call_inside(
        hosts.names[0], lambda: RemoteAgent(host, settings, message, "stand_in_agent")
    )


def read_line(agent: RemoteAgent) -> dict[str, Any]:
    """Return what the stand-in printed, as soon as it has printed all of it."""
    told, deadline_s = b"", time.monotonic() + LIMIT_S
    while not told.endswith(b"\n"):
        left_s = max(0.0, deadline_s - time.monotonic())
        assert select.select([agent.stdout], [], [], left_s)[0], "the agent printed nothing"
        if not (data := os.read(agent.stdout, 1 << 20)):
            pytest.fail(f"{read_stderr_to_end(agent)!r} {agent.failure()}")
        told += data
    answer: dict[str, Any] = json.loads(told)
    return answer


def read_stderr_to_end(agent: RemoteAgent) -> bytes:
    """Read until ssh has ended."""
    told, deadline_s = b"", time.monotonic() + LIMIT_S
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        assert select.select([agent.stderr], [], [], left_s)[0], "ssh did not end"
        if not (data := os.read(agent.stderr, 1 << 16)):
            return told
        told += agent.agents_part(data)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def test_agent_gets_its_settings_and_ends_with_its_stdin(
    hosts: ssh_hosts.SshHosts, settings: HostOptions, tmp_path: Path
) -> None:
    large = {**settings.environment, "HCCL_LARGE": "x" * 200_000}
    settings = replace(settings, directory=str(tmp_path), environment=large)
    with start(hosts, settings, hosts.host(1)) as agent:
        printed = read_line(agent)
        rest = {"environment": large, "directory": str(tmp_path)}
        assert printed["told"] == {"secret": SECRET, **rest}
        assert printed["pid"] in hosts.processes(1)
        for index in (0, 1):
            assert SECRET not in " ".join(hosts.processes(index).values())
        agent.hang_up()
        assert read_stderr_to_end(agent) == b"the agent is up\n"
        assert agent.failure() is None
        assert agent.poll() == 0


@pytest.mark.parametrize(
    ("killed", "told"),
    [("ssh", "ssh was ended by SIGKILL"), ("sshd", "the ssh connection broke: Connection to ")],
)
def test_agent_ends_when_its_connection_is_killed(
    hosts: ssh_hosts.SshHosts, settings: HostOptions, killed: str, told: str
) -> None:
    index = 0 if killed == "ssh" else 1
    before = set(hosts.processes(index))
    with start(hosts, settings, hosts.host(1)) as agent:
        pid = read_line(agent)["pid"]
        for other, command in hosts.processes(index).items():
            if other not in before and command.split()[0].rstrip(":") == killed:
                os.kill(other, signal.SIGKILL)
        wait_until(lambda: pid not in hosts.processes(1), "the agent survived its connection")
        read_stderr_to_end(agent)
        assert str(agent.failure()).startswith(f"10.77.0.2: {told}")


def test_nothing_stays_when_the_launcher_is_killed(hosts: ssh_hosts.SshHosts) -> None:
    program = (
        "import os, sys, time\n"
        "from hccl_py.launcher.hosts.host_list import Host\n"
        "from hccl_py.launcher.hosts.options import HostOptions, SshOptions\n"
        "from hccl_py.launcher.hosts.remote_agent import RemoteAgent\n"
        f"environment = {{'PYTHONPATH': {HERE!r}}}\n"
        f"options = HostOptions((), {hosts.ssh!r}, environment, sys.executable, '/')\n"
        "agent = RemoteAgent(Host('node-b', 1), options, {}, 'stand_in_agent')\n"
        "os.write(1, os.read(agent.stdout, 65536))\n"
        "time.sleep(100)\n"
    )
    before = [set(hosts.processes(index)) for index in (0, 1)]
    command = hosts.command(0, sys.executable, "-c", program)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert json.loads(launcher.stdout.readline())["pid"] in hosts.processes(1)
        launcher.kill()
    for index in (0, 1):
        wait_until(
            lambda index=index: set(hosts.processes(index)) <= before[index],  # type: ignore[misc]
            "something survived the launcher",
        )


def test_silent_network_ends_ssh(hosts: ssh_hosts.SshHosts, settings: HostOptions) -> None:
    with start(hosts, settings, hosts.host(1)) as agent:
        read_line(agent)
        hosts.cut(0)
        try:
            read_stderr_to_end(agent)
        finally:
            hosts.restore(0)
        expected = "10.77.0.2: the ssh connection broke: Timeout, server 10.77.0.2 not responding."
        assert agent.failure() == expected


@pytest.mark.parametrize(
    ("change", "address", "expected"),
    [
        (SshOptions(port=2), "10.77.0.2", "Connection refused; start sshd there"),
        (SshOptions(options=("PubkeyAuthentication=no",)), "10.77.0.2", "install a key there"),
        (SshOptions(options=("UserKnownHostsFile=/dev/null",)), "10.77.0.2", "check its key"),
        (SshOptions(), "10.77.0.9", "No route to host; check that the host is up"),
        (SshOptions(), "10.99.0.9", "Network is unreachable; check that the host is up"),
    ],
)
def test_failure_of_ssh_is_one_line(
    hosts: ssh_hosts.SshHosts,
    settings: HostOptions,
    change: SshOptions,
    address: str,
    expected: str,
) -> None:
    ssh = replace(change, options=(*change.options, *hosts.ssh.options))
    with start(hosts, replace(settings, ssh=ssh), Host(address, 1)) as agent:
        assert read_stderr_to_end(agent) == b""
        told = agent.failure()
        assert told is not None
        assert told.startswith(f"{address}: ssh failed: ")
        assert expected in told
        assert "\n" not in told


def test_lack_of_a_host_is_one_line(hosts: ssh_hosts.SshHosts, settings: HostOptions) -> None:
    broken = replace(settings, directory="/missing")
    with start(hosts, broken, hosts.host(1)) as agent:
        assert read_stderr_to_end(agent) == b""
        assert str(agent.failure()).startswith(
            "10.77.0.2: cannot enter the working directory /missing; "
        )


def test_agents_of_many_hosts_start_together(
    hosts: ssh_hosts.SshHosts, settings: HostOptions
) -> None:
    with ExitStack() as stack:
        agents = [
            stack.enter_context(start(hosts, settings, hosts.host(index % 2)))
            for index in range(32)
        ]
        assert all(agent.poll() is None for agent in agents)
        assert len({read_line(agent)["pid"] for agent in agents}) == 32
