"""A node's facts about itself: plain values, sent to the coordinator unchanged."""

import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from hccl_py.installation import version_of
from hccl_py.launcher.machine.lookups import addresses_of, in_threads
from hccl_py.launcher.placement.topology import read_machine
from hccl_py.transport.errors import HcclError
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.interfaces import choose_addresses, list_interfaces
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.network.system_calls import available_memory, descriptor_limits
from hccl_py.transport.providers.verbs.locked_memory import locked_bytes, locked_bytes_per_peer

RESOLVE_S = 5.0
_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_IFF_RUNNING = 0x40
_RDMA = "/sys/class/infiniband"
_PACKAGES = ("torch", "hccl-py")
# Secrets are not compared, and every emulated node has its own id.
_NOT_COMPARED = ("HCCL_SECRET", "HCCL_NODE_ID")

Resolved = list[str] | str
"""The addresses of a name, or why it has none."""


class Interface(TypedDict):
    """A network interface that is up."""

    mtu: int
    has_carrier: bool


class Rdma(TypedDict):
    """The RDMA ports of a node.

    Attributes:
        lines: a description of all; empty: there is none.
        used: the port that ranks would use; empty: none can be used.
        problem: an invalid setting.
        unopened: why ranks cannot open that port, and the remedy; empty: they can.
        locked_bytes: how much memory ranks may register; None: all.
        locked_bytes_per_peer: how much one registers for each rank of another node.
    """

    lines: list[str]
    used: str
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
        cpus, quota: CPUs that the job may use, and its cgroup's CPU time per time.
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


def examine(names: Sequence[str], master_addr: str, environ: Mapping[str, str]) -> Facts:
    """Return the facts of this node.

    Takes `RESOLVE_S` if a name server does not answer.

    Args:
        names: names that must resolve here.
        master_addr: the ranks' MASTER_ADDR.
        environ: the ranks' environment.
    """
    resolved = resolve((*names, master_addr), RESOLVE_S)
    is_known = not isinstance(resolved[master_addr], str)
    paths, network, problem = _network({**environ, "MASTER_ADDR": master_addr * is_known})
    given = {name: value for name, value in environ.items() if name.startswith("HCCL_")}
    identity = Identity.of_this_process("")
    ports, machine, interfaces = network.ports, read_machine(), _interfaces()
    return Facts(
        hostname=identity.host,
        machine=[str(part) for part in identity.machine],
        interfaces=interfaces,
        paths=paths,
        setting_problem=problem,
        port_range=[ports[0], ports[-1]] if ports else [],
        connections_per_path=network.num_connections,
        open_files=list(descriptor_limits()),
        cpus=len(machine.cpus),
        quota=machine.quota,
        memory_limit=machine.memory_bytes,
        memory_available=available_memory(),
        versions={"Python": platform.python_version()} | {x: version_of(x) for x in _PACKAGES},
        rdma=_rdma(environ, [interface for interface, _ in paths], interfaces),
        hccl_settings={name: given[name] for name in sorted(given) if name not in _NOT_COMPARED},
        resolved=resolved,
    )


def _network(environ: Mapping[str, str]) -> tuple[list[list[str]], NetworkSettings, str]:
    """Choose addresses as the ranks will; return the problem if they cannot."""
    network = NetworkSettings()
    try:
        network = NetworkSettings.from_environment(environ)
        chosen = choose_addresses(network)
    except HcclError as error:
        return [], network, str(error)
    return [[one.interface, one.host] for one in chosen], network, ""


def _rdma(
    environ: Mapping[str, str], names: list[str], interfaces: Mapping[str, Interface]
) -> Rdma:
    found = Rdma(
        lines=[],
        used="",
        problem="",
        unopened=[],
        locked_bytes=locked_bytes(),
        locked_bytes_per_peer=locked_bytes_per_peer(),
    )
    if not os.path.isdir(_RDMA):
        return found
    # Imported only with RDMA: it would cost each agent of a large job.
    from hccl_py.transport.providers.verbs.choice import candidates
    from hccl_py.transport.providers.verbs.devices import list_ports
    from hccl_py.transport.providers.verbs.library import opening_problem
    from hccl_py.transport.providers.verbs.listing import (
        WHOLE_PACKETS_MTU,
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
        usable = candidates(ports, given, names)
    except HcclError as error:
        found["problem"] = str(error)
        return found
    num_devices = max(num_used(usable, given), 1)
    found["locked_bytes_per_peer"] = locked_bytes_per_peer(num_devices)
    found["lines"] = [*port_lines(usable, given), locked_memory_line(num_devices)]
    first = usable[0]
    if first.gid is not None:
        found["used"] = str(first.port)
        found["unopened"] = list(opening_problem(first.port.device) or ())
        found["lines"] += [f"  cannot be opened: {cause}" for cause in found["unopened"][:1]]
        name, mtu = first.gid.interface, interfaces[first.gid.interface]["mtu"]
        found["lines"] += flow_control_lines(name)
        if mtu < WHOLE_PACKETS_MTU:
            what = f"  has an MTU of {mtu} on {name}: RDMA packets are small"
            remedy = f"ip link set {name} mtu {WHOLE_PACKETS_MTU}, and on the switches"
            found["lines"].append(f"{what}: {remedy}")
    return found


def _interfaces() -> dict[str, Interface]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name in list_interfaces():
            request = name.encode().ljust(40, b"\0")
            try:
                flags = fcntl.ioctl(asking, _SIOCGIFFLAGS, request)
                mtu = fcntl.ioctl(asking, _SIOCGIFMTU, request)
            except OSError:
                continue  # it has been removed
            has_carrier = bool(struct.unpack_from("=H", flags, 16)[0] & _IFF_RUNNING)
            found[name] = Interface(
                mtu=struct.unpack_from("=i", mtu, 16)[0], has_carrier=has_carrier
            )
    return found


def resolve(names: Iterable[str], timeout_s: float) -> dict[str, Resolved]:
    """Return the addresses of each name; a silent name server costs the timeout."""
    asked = [name for name in dict.fromkeys(names) if name]
    silent = f"no name server answered within {timeout_s:g} s"
    found = in_threads(addresses_of, asked, timeout_s)
    return {name: one or silent for name, one in zip(asked, found, strict=True)}
