"""The addresses of the job's hosts, and which of them is this machine.

A name is resolved as in ssh: `ssh -G` prints its name by `~/.ssh/config`, then the resolver is
queried. Behind a ProxyJump only the proxy knows the address, so such a host has none.
"""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.options import SshOptions
from hccl_py.launcher.machine.lookups import addresses_of, in_threads
from hccl_py.transport.network.interfaces import address_family

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Location:
    """The location of a host.

    Attributes:
        addresses: numeric, in the resolver's order; none behind a proxy of ssh.
        is_here: it is this machine with this user, so its agent needs no ssh.
        is_alias: the name is defined in ssh's configuration, and need not resolve.
    """

    host: Host
    addresses: tuple[str, ...]
    is_here: bool
    is_alias: bool = False


def locate(
    hosts: Sequence[Host], ssh: SshOptions, *, timeout_s: float = _TIMEOUT_S
) -> tuple[Location, ...]:
    """Resolve all hosts at once.

    Args:
        hosts: the job's hosts.
        ssh: its configuration may map names to addresses.
        timeout_s: for all hosts together.

    Raises:
        UsageError: some names have no address; the message lists them. Or a host needs ssh, which
            is not installed.
    """
    found = in_threads(lambda host: _locate(host, ssh), hosts, timeout_s)
    silent = f"no answer of the name server within {timeout_s:.0f} s"
    problems = [
        f"{host.name} ({silent if result is None else result})"
        for host, result in zip(hosts, found, strict=True)
        if not isinstance(result, Location)
    ]
    if problems:
        raise UsageError(
            f"no address for {', '.join(problems)}; correct the names, or add them to the DNS, "
            "/etc/hosts or ~/.ssh/config of this machine"
        )
    locations = tuple(result for result in found if isinstance(result, Location))
    remote = [location.host.name for location in locations if not location.is_here]
    if remote and shutil.which("ssh") is None:
        raise UsageError(f"{', '.join(remote)}: reached by ssh, which is not installed here")
    return locations


def _locate(host: Host, ssh: SshOptions) -> Location | str:
    """Resolve one host; return the reason if it has no address."""
    configured = _configuration(host, ssh)
    if {"proxyjump", "proxycommand"} & configured.keys():
        return Location(host, (), False, is_alias=True)
    name = configured.get("hostname", host.name).lower()
    found = addresses_of(name)
    if isinstance(found, str):
        return found if name == host.name else f"{name}: {found}"
    user = configured.get("user", host.user or ssh.user)
    is_me = user in (None, pwd.getpwuid(os.getuid()).pw_name)
    here = is_me and any(map(_is_of_this_machine, found))
    return Location(host, tuple(found), here, is_alias=name != host.name.lower())


def _configuration(host: Host, ssh: SshOptions) -> dict[str, str]:
    """Return ssh's settings for a host; none without ssh."""
    command = ["ssh", "-G", *ssh.words(host), "--", host.name]
    with suppress(OSError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return {}


def _is_of_this_machine(address: str) -> bool:
    """Return whether an address is this machine's: only those can be bound."""
    with suppress(OSError), socket.socket(address_family(address), socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False
