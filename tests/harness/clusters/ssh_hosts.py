"""Hosts that are reached by ssh: network namespaces with a name and an sshd each.

    with SshHosts(num_hosts=3) as hosts:
        command = hosts.command(0, "ssh", *hosts.ssh.words(hosts.host(1)), "node-b", "hostname")

The first host is where the launcher runs. The names resolve in what `command` runs; a thread that
`call_inside` moved to a host needs the addresses. All hosts share the files of this machine.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import namespaces
from namespaces import Hosts

from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.options import SshOptions

_START_S = 10.0
_SSHD_OPTIONS = (
    *("StrictModes=no", "PermitRootLogin=prohibit-password", "PasswordAuthentication=no"),
    *("UsePAM=no", "PidFile=none", "MaxStartups=100"),
)


@functools.cache
def why_not() -> str | None:
    """Say why there can be no such hosts; None if there can."""
    if _sshd() is None or shutil.which("ssh") is None:
        return "no ssh and sshd: apt-get install openssh-client openssh-server"
    return namespaces.why_not()


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


class SshHosts(Hosts):
    """Namespaces with an sshd each. A context manager: leaving it ends all that runs in them.

    Attributes:
        ssh: with the key and the known hosts that make ssh ask nothing.
        host_names: `node-a`, `node-b`, ...
    """

    def __init__(self, *, num_hosts: int = 2) -> None:
        super().__init__(num_hosts=num_hosts)
        self.host_names = tuple(f"node-{name.rpartition('-')[2]}" for name in self.names)
        self._resources = ExitStack()

    def __enter__(self) -> SshHosts:
        super().__enter__()
        try:
            self._folder = Path(
                self._resources.enter_context(tempfile.TemporaryDirectory(prefix="ssh-hosts-"))
            )
            self._make_keys()
            self._name_hosts()
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
            for index in range(len(self.names)):
                self._start_sshd(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            for pid in self._pids(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        self._resources.close()
        super().__exit__()

    def host(self, index: int, slots: int = 1) -> Host:
        """Return a host under its address, which needs no resolver."""
        return Host(self.address(index), slots)

    def processes(self, index: int) -> dict[int, str]:
        """Return the command lines of what runs on a host, by process id."""
        found = {}
        for pid in self._pids(self.names[index]):
            with suppress(OSError):  # ended between the two looks
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return found

    def _pids(self, name: str) -> list[int]:
        words = ["ip", "netns", "pids", name]
        return [int(x) for x in subprocess.run(words, capture_output=True).stdout.split()]

    def _make_keys(self) -> None:
        for name in ("user", "host"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(words, check=True)
        known = self._folder / "known_hosts"
        known.write_text(f"* {(self._folder / 'host.pub').read_text()}")
        files = (f"IdentityFile={self._folder / 'user'}", f"UserKnownHostsFile={known}")
        self.ssh = SshOptions(options=(*files, "IdentitiesOnly=yes"))

    def _name_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(k)} {name}" for k, name in enumerate(self.host_names)]
        for name in self.names:
            folder = Path("/etc/netns", name)  # `ip netns exec` mounts its files over those of /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")

    def _start_sshd(self, index: int) -> None:
        name, log = self.host_names[index], self._folder / f"{self.names[index]}.log"
        options = [*_SSHD_OPTIONS, f"AuthorizedKeysFile={self._folder / 'user.pub'}"]
        words = [f"hostname {name}; exec {_sshd()} -D -f /dev/null -h {self._folder / 'host'}"]
        words += [f"-E {log}", *(f"-o {option}" for option in options)]
        # A UTS namespace of its own, in which it has its own name.
        command = self.command(index, "unshare", "--uts", "sh", "-c", " ".join(words))
        process = self._resources.enter_context(subprocess.Popen(command))
        deadline_s = time.monotonic() + _START_S
        while not (log.exists() and "Server listening" in log.read_text()):
            told = log.read_text() if log.exists() else "no log"
            assert process.poll() is None, f"sshd of {name} ended: {told}"
            assert time.monotonic() < deadline_s, f"sshd of {name} is not up: {told}"
            time.sleep(0.02)
