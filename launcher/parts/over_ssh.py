"""The coordinator of a job whose agents it starts over ssh."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.addresses import Location, locate
from hccl_py.launcher.hosts.options import HostOptions
from hccl_py.launcher.job.layout import Slot
from hccl_py.launcher.machine.open_files import allow_connections
from hccl_py.launcher.options import JobOptions
from hccl_py.launcher.parts.settings import (
    bind,
    has_user,
    program_of,
    settings_of,
)
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.network.interfaces import address_family, address_towards
from hccl_py.transport.network.secret import SECRET


def locations(remote: HostOptions) -> tuple[Location, ...]:
    """Find the hosts, or raise UsageError."""
    found = locate(remote.hosts, remote.ssh)
    here = [location.host.name for location in found if location.is_here]
    if len(here) > 1:
        raise UsageError(
            f"{', '.join(here)} are all this machine: name it once, with all its slots"
        )
    return found


def part(
    options: JobOptions, remote: HostOptions, found: tuple[Location, ...], folder: Path
) -> Callable[[], int]:
    """Return a function that runs the coordinator and this node, and starts the others."""
    families = {address_family(each) for location in found for each in location.addresses[:1]}
    allow_connections(len(found))
    bound = bind("::" if socket.AF_INET6 in families else "0.0.0.0", 0)
    secret = os.environ.setdefault(SECRET, os.urandom(32).hex())
    where = f"port {bound.getsockname()[1]} of {socket.gethostname()}"
    settings = settings_of(options, tuple(host.name for host in remote.hosts), where)._replace(
        aliases=frozenset(location.host.name for location in found if location.is_alias),
    )
    local = []
    for index, location in enumerate(found):
        if location.is_here:
            mine = program_of(options, folder, [Slot(index, i) for i in range(location.host.slots)])
            address = address_of_this(found)
            local.append((index, mine, address, options.master_port or free_port()))
    remote = replace(remote, environment={**remote.environment, SECRET: secret})
    common = {
        "num_agents": len(found),
        "program": options.program,
        "is_python": options.is_python,
        "bind": options.bind.value,
        "output": options.output,
        "has_user": has_user(),
        "port": bound.getsockname()[1],
        "secret": secret,
        "stop_s": options.stop_s,
        "connect_timeout_s": options.connect_timeout_s,
    }
    messages = {
        index: {
            **common,
            "index": index,
            "ranks": location.host.slots,
            "coordinator": _source(location, found),
        }
        for index, location in enumerate(found)
        if not location.is_here
    }

    def body() -> int:
        from hccl_py.launcher.job import serve
        from hccl_py.launcher.job.over_ssh import SshAgents

        return serve.run(
            settings,
            local,
            (bound, secret),
            lambda loop, server: SshAgents(loop, server, messages, remote),
        )

    return body


def address_of_this(found: tuple[Location, ...]) -> str:
    """Return this machine's address for the other hosts."""
    return _source(next(each for each in found if not each.is_here), found)


def _source(location: Location, found: tuple[Location, ...]) -> str:
    """Return this machine's address towards a host; some are hidden behind a proxy of ssh.

    A hidden host is assumed to be near the others.
    """
    others = (each for each in (location, *found) if not each.is_here)
    known = (address for each in others for address in each.addresses)
    return address_towards(next(known, None), None)
