"""What `hccl-perftest --devices` prints: RDMA ports, which one is used, and why not the others."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, VerbsError
from hccl_py.transport.network.interfaces import choose_addresses
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.providers.verbs.choice import Candidate, candidates, choose
from hccl_py.transport.providers.verbs.devices import RdmaPort, list_ports
from hccl_py.transport.providers.verbs.settings import RdmaSettings

_NEEDED_LOCKED_BYTES = 64 << 20
"""Of a rank: 6.3 MB for each rank of another node."""


def device_lines(ports: Sequence[RdmaPort] | None = None) -> Iterator[str]:
    """Yield what there is, line by line; `ports` are those of this host unless given."""
    settings = RdmaSettings.from_environment()
    interfaces = _interfaces()
    ports = list_ports() if ports is None else ports
    looked_at = candidates(ports, settings, interfaces)
    for index, one in enumerate(looked_at):
        yield from _port_lines(one, is_used=index == 0 and one.gid is not None)
    if not looked_at:
        try:
            choose(ports, settings)
        except BootstrapError as error:
            yield str(error)
        return
    yield f"control connections: {', '.join(interfaces) or 'no interface'}"
    yield from _hints(looked_at[0])


def _port_lines(one: Candidate, *, is_used: bool) -> Iterator[str]:
    port = one.port
    what = f"used, with GID {one.gid}" if is_used else one.problem or "not needed"
    yield f"{port} ({port.link_layer}, {port.rate or 'no rate'}, {port.state or 'gone'}): {what}"
    for gid in port.gids:
        yield f"    GID {gid}"


def _hints(first: Candidate) -> Iterator[str]:
    if first.gid is not None:
        route = [first.port.number, first.gid.index, 0, 0]
        try:
            mtu = _core.RdmaDevice(first.port.device, route).mtu()
            advice = (
                "" if mtu == 4096 else f"; 4096 needs: ip link set {first.gid.interface} mtu 4200"
            )
            yield f"packets of {first.port}: {mtu} bytes{advice}"
        except VerbsError as error:
            yield f"cannot be opened: {error}"
        yield from _flow_control(first.gid.interface)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY:
        yield "locked memory: unlimited"
    else:
        advice = "; raise it: ulimit -l unlimited" if locked < _NEEDED_LOCKED_BYTES else ""
        yield f"locked memory: {locked >> 20} MiB{advice}"


def _flow_control(interface: str) -> Iterator[str]:
    """Say what RoCE needs of the network: packets that are lost cost whole retry times."""
    if Path(f"/sys/class/net/{interface}/device").exists():
        yield (
            f"flow control: check PFC with `mlnx_qos -i {interface}` or `dcb pfc show dev "
            f"{interface}`, ECN with `dcb -j app show dev {interface}`; HCCL_IB_TC sets the DSCP"
        )


def _interfaces() -> list[str]:
    try:
        return [one.interface for one in choose_addresses(NetworkSettings.from_environment())]
    except BootstrapError:
        return []
