"""What a node says of itself: plain values, which travel to the coordinator as they are."""

import fcntl
import ipaddress
import os
import platform
import resource
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TypedDict

from hccl_py.launcher.lookups import addresses_of, in_threads
from hccl_py.launcher.placement.topology import read_machine
from hccl_py.transport.errors import HcclError
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.interfaces import choose_addresses, list_interfaces
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.providers.verbs.locked_memory import locked_bytes, locked_bytes_per_peer

RESOLVE_S = 5.0
_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_IFF_RUNNING = 0x40
_RDMA = "/sys/class/infiniband"
_PACKAGES = ("torch", "hccl-py")
# A secret is no setting to compare, and every emulated node has an id of its own.
_NOT_COMPARED = ("HCCL_SECRET", "HCCL_NODE_ID")

Resolved = list[str] | str
"""The addresses of a name, or why it has none."""


@dataclass(frozen=True)
class Settings:
    """What an agent knows of its node when preflight begins.

    Attributes:
        node: its number.
        node_sizes: ranks on each node.
        names: what the user calls each node; "" where there is no name.
        master_addr: what ranks will find as MASTER_ADDR.
        master_port: where rank 0 will listen; None: do not test it.
        environ: of the ranks.
        secret: of the job.
    """

    node: int
    node_sizes: tuple[int, ...]
    names: tuple[str, ...]
    master_addr: str
    master_port: int | None
    environ: Mapping[str, str] = field(repr=False)  # it may hold secrets
    secret: bytes = field(default=b"", repr=False)


class Interface(TypedDict):
    """A network interface that is up."""

    addresses: list[str]
    mtu: int
    has_carrier: bool


class Rdma(TypedDict):
    """The RDMA ports of a node.

    Attributes:
        lines: all of them, for people; empty: there is none.
        used: the port that ranks would use; empty: none can be used.
        interface: of that port.
        problem: a setting that makes no sense.
        unopened: why ranks cannot open that port, and what mends it; empty: they can.
        locked_bytes: how much memory ranks may register; None: all.
        locked_bytes_per_peer: how much one registers for each rank of another node.
    """

    lines: list[str]
    used: str
    interface: str
    problem: str
    unopened: list[str]
    locked_bytes: int | None
    locked_bytes_per_peer: int


class Facts(TypedDict):
    """A node, with sizes in bytes.

    Attributes:
        machine: equal for nodes that are one machine.
        paths: interface and address of the ranks' listeners, one per path.
        setting_problem: why there are no paths.
        port_range: first and last port; empty: any.
        open_files: soft and hard limit; -1 is none.
        cpus, quota: CPUs that the job may use, and CPU time per time that its cgroup may.
    """

    hostname: str
    machine: list[str]
    interfaces: dict[str, Interface]
    paths: list[list[str]]
    setting_problem: str
    port_range: list[int]
    connections_per_path: int
    open_files: list[int]
    cpus: int
    quota: float | None
    memory_limit: int | None
    memory_available: int
    versions: dict[str, str]
    rdma: Rdma
    hccl_settings: dict[str, str]
    resolved: dict[str, Resolved]


def examine(settings: Settings) -> Facts:
    """Look at this node; takes `RESOLVE_S` where a name server does not answer."""
    resolved = resolve((*settings.names, settings.master_addr), RESOLVE_S)
    is_known = not isinstance(resolved.get(settings.master_addr, ""), str)
    paths, network, problem = _network(settings, settings.master_addr if is_known else "")
    given = {name: value for name, value in settings.environ.items() if name.startswith("HCCL_")}
    identity = Identity.of_this_process("")
    ports, machine = network.ports, read_machine()
    return Facts(
        hostname=identity.host,
        machine=[str(part) for part in identity.machine],
        interfaces=_interfaces(),
        paths=paths,
        setting_problem=problem,
        port_range=[ports[0], ports[-1]] if ports else [],
        connections_per_path=network.num_connections,
        open_files=list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        cpus=len(machine.cpus),
        quota=machine.quota,
        memory_limit=machine.memory_bytes,
        memory_available=_available_memory(),
        versions={"Python": platform.python_version(), **dict(map(_version, _PACKAGES))},
        rdma=_rdma(settings.environ, [interface for interface, _ in paths]),
        hccl_settings={name: given[name] for name in sorted(given) if name not in _NOT_COMPARED},
        resolved=resolved,
    )


def _network(settings: Settings, master_addr: str) -> tuple[list[list[str]], NetworkSettings, str]:
    """Choose addresses as the ranks will; return why not if they cannot."""
    given = {**settings.environ, "MASTER_ADDR": master_addr}
    network = NetworkSettings()
    try:
        network = NetworkSettings.from_environment(given)
        chosen = choose_addresses(network)
    except HcclError as error:
        return [], network, str(error)
    return [[one.interface, one.host] for one in chosen], network, ""


def _rdma(environ: Mapping[str, str], interfaces: list[str]) -> Rdma:
    found = Rdma(
        lines=[],
        used="",
        interface="",
        problem="",
        unopened=[],
        locked_bytes=locked_bytes(),
        locked_bytes_per_peer=locked_bytes_per_peer(),
    )
    if not os.path.isdir(_RDMA):
        return found
    # Not imported where there is no RDMA: it would cost each agent of a large job.
    from hccl_py.transport.providers.verbs.choice import candidates
    from hccl_py.transport.providers.verbs.devices import list_ports
    from hccl_py.transport.providers.verbs.library import opening_problem
    from hccl_py.transport.providers.verbs.listing import (
        flow_control_lines,
        locked_memory_line,
        num_used,
        port_lines,
    )
    from hccl_py.transport.providers.verbs.settings import RdmaSettings

    ports = list_ports()
    if not ports:
        return found
    try:
        given = RdmaSettings.from_environment(environ)
        looked_at = candidates(ports, given, interfaces)
    except HcclError as error:
        found["problem"] = str(error)
        return found
    num_devices = max(num_used(looked_at, given), 1)
    found["locked_bytes_per_peer"] = locked_bytes_per_peer(num_devices)
    found["lines"] = [*port_lines(looked_at, given), locked_memory_line(num_devices)]
    first = looked_at[0]
    if first.gid is not None:
        found["used"], found["interface"] = str(first.port), first.gid.interface
        found["unopened"] = list(opening_problem(first.port.device) or ())
        found["lines"] += flow_control_lines(first.gid.interface)
    return found


def _interfaces() -> dict[str, Interface]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name, addresses in list_interfaces().items():
            request = name.encode().ljust(40, b"\0")
            try:
                flags = fcntl.ioctl(asking, _SIOCGIFFLAGS, request)
                mtu = fcntl.ioctl(asking, _SIOCGIFMTU, request)
            except OSError:
                continue  # it was removed meanwhile
            has_carrier = bool(struct.unpack_from("=H", flags, 16)[0] & _IFF_RUNNING)
            found[name] = Interface(
                addresses=addresses,
                mtu=struct.unpack_from("=i", mtu, 16)[0],
                has_carrier=has_carrier,
            )
    return found


def _version(package: str) -> tuple[str, str]:
    try:
        return package, metadata.version(package)
    except metadata.PackageNotFoundError:
        return package, "not installed"


def _available_memory() -> int:
    """Return what new processes can have without swapping, by the kernel's estimate."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        sizes_kb = dict(line.split()[:2] for line in lines)
    return int(sizes_kb["MemAvailable:"]) << 10


def resolve(names: Iterable[str], timeout_s: float) -> dict[str, Resolved]:
    """Return what each name resolves to; a name server that does not answer costs the timeout."""
    asked = [name for name in dict.fromkeys(names) if name]
    silent = f"no name server answered within {timeout_s:g} s"
    found = in_threads(addresses_of, asked, timeout_s)
    return {name: one or silent for name, one in zip(asked, found, strict=True)}


def is_loopback(resolved: Resolved) -> bool:
    """Say whether a name means the host that asked, as Debian's 127.0.1.1 does."""
    return not isinstance(resolved, str) and any(
        ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in resolved
    )
