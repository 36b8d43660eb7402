"""The choice of an RDMA port and its GID, with the reasons against the others."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import select_interfaces
from hccl_py.transport.providers.verbs.devices import (
    ACTIVE,
    ETHERNET,
    INFINIBAND,
    ROCE_V2,
    Gid,
    RdmaPort,
)
from hccl_py.transport.providers.verbs.library import library_problem
from hccl_py.transport.providers.verbs.settings import RdmaSettings


@dataclass(frozen=True)
class Candidate:
    """A port with its GID, or with the problem that prevents its use.

    Attributes:
        problem: why it cannot be used, and the command or setting that helps; empty: usable.
    """

    port: RdmaPort
    gid: Gid | None = None
    problem: str = ""


def candidates(
    ports: Sequence[RdmaPort], settings: RdmaSettings, interfaces: Collection[str] = ()
) -> tuple[Candidate, ...]:
    """Check every port; return usable ones first, of them the ones on `interfaces` first.

    Args:
        ports: of this host.
        settings: HCCL_IB_*.
        interfaces: network interfaces that the ranks use for their control connections.
    """
    selected = _selected(ports, settings.devices)
    found = [_candidate(port, port in selected, settings, interfaces) for port in ports]

    def place(one: Candidate) -> tuple[bool, bool, int, bool]:
        wanted = selected.index(one.port) if settings.lists_devices and one.port in selected else 0
        is_near = one.gid is not None and one.gid.interface in interfaces
        is_far = not is_near and not settings.devices
        return bool(one.problem), is_far, wanted, one.port.link_layer != ETHERNET

    return tuple(sorted(found, key=place))


def choose(
    ports: Sequence[RdmaPort], settings: RdmaSettings, interfaces: Collection[str] = ()
) -> tuple[tuple[RdmaPort, Gid], ...]:
    """Return the ports and GIDs to use: all that HCCL_IB_HCA lists, else one.

    Raises:
        BootstrapError: no port is usable; says why.
    """
    looked_at = candidates(ports, settings, interfaces)
    usable = tuple((one.port, one.gid) for one in looked_at if one.gid is not None)
    if usable:
        return usable if settings.lists_devices else usable[:1]
    if not looked_at:
        no_device = (
            "this host has no RDMA device (/sys/class/infiniband is empty); "
            "is the driver loaded? Soft-RoCE on any interface: "
            "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"
        )
        library = library_problem()
        raise BootstrapError(f"{library}; besides, {no_device}" if library else no_device)
    problems = "; ".join(f"{one.port}: {one.problem}" for one in looked_at)
    raise BootstrapError(f"no RDMA port can be used: {problems}")


def choose_gid(
    port: RdmaPort, settings: RdmaSettings, interfaces: Collection[str] = ()
) -> Gid | None:
    """Return the GID that HCCL_IB_GID_INDEX names, else the best RoCE v2 one, else None.

    Routable addresses come first, then those of `interfaces`, then IPv4-mapped ones.
    """
    if settings.gid_index is not None:
        return next((gid for gid in port.gids if gid.index == settings.gid_index), None)
    if port.link_layer == INFINIBAND:  # the first one is the port's own
        return next(iter(port.gids), None)
    usable = [gid for gid in port.gids if gid.kind == ROCE_V2]

    def place(gid: Gid) -> tuple[bool, bool, bool, int]:
        is_ipv6 = gid.address.ipv4_mapped is None
        return gid.ip.is_link_local, gid.interface not in interfaces, is_ipv6, gid.index

    return min(usable, key=place, default=None)


def _candidate(
    port: RdmaPort, is_selected: bool, settings: RdmaSettings, interfaces: Collection[str]
) -> Candidate:
    if not is_selected:
        return Candidate(port, problem=f"HCCL_IB_HCA={settings.devices} leaves it out: unset it")
    if port.link_layer not in (ETHERNET, INFINIBAND):
        return Candidate(
            port,
            problem=f"its link layer is {port.link_layer}, expected {ETHERNET} or {INFINIBAND}",
        )
    if port.state != ACTIVE:
        where = next((gid.interface for gid in port.gids if gid.interface), "INTERFACE")
        return Candidate(port, problem=f"it is {port.state}: ip link set {where} up, cable in")
    gid = choose_gid(port, settings, interfaces)
    if gid is None and settings.gid_index is not None:
        there = ", ".join(map(str, port.gids)) or "none"
        return Candidate(
            port,
            problem=f"HCCL_IB_GID_INDEX={settings.gid_index} is not set; there are {there}: "
            "take one of them, or unset the variable",
        )
    if gid is None and port.link_layer == INFINIBAND:
        return Candidate(port, problem="it has no GID: does a subnet manager run (opensm)?")
    if gid is None:
        return Candidate(
            port, problem="it has no RoCE v2 GID: give its interface an IP address (ip address add)"
        )
    if port.link_layer == ETHERNET and gid.kind != ROCE_V2:
        return Candidate(port, problem=f"GID {gid} is not RoCE v2; unset HCCL_IB_GID_INDEX")
    return Candidate(port, gid)


def _selected(ports: Sequence[RdmaPort], pattern: str | None) -> list[RdmaPort]:
    """Return the ports that HCCL_IB_HCA selects, in its order; all where it is unset."""
    if not pattern:
        return list(ports)
    excludes = pattern.startswith("^")
    body = pattern.removeprefix("^")
    exact = "=" if body.startswith("=") else ""
    matches: list[RdmaPort] = []
    for wanted in body.removeprefix("=").split(","):
        name, _, number = wanted.strip().partition(":")
        devices = select_interfaces(exact + name, list(dict.fromkeys(p.device for p in ports)))
        of_them = [port for device in devices for port in ports if port.device == device]
        matches += [port for port in of_them if number in ("", str(port.number))]
    if excludes:
        return [port for port in ports if port not in matches]
    return list(dict.fromkeys(matches))
