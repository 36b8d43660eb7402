"""The output of `hccl-perftest --devices`: RDMA ports, the used one, and why not the others."""

from collections.abc import Iterator, Sequence

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, VerbsError
from hccl_py.transport.network.interfaces import choose_addresses
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.providers.verbs.choice import Candidate, candidates, choose
from hccl_py.transport.providers.verbs.devices import RdmaPort, list_ports
from hccl_py.transport.providers.verbs.listing import (
    WHOLE_PACKETS_MTU,
    flow_control_lines,
    locked_memory_line,
    num_used,
    port_lines,
)
from hccl_py.transport.providers.verbs.settings import RdmaSettings


def device_lines(ports: Sequence[RdmaPort] | None = None) -> Iterator[str]:
    """Yield the lines on RDMA ports; `ports` are those of this host unless given."""
    settings = RdmaSettings.from_environment()
    interfaces = _interfaces()
    ports = list_ports() if ports is None else ports
    found = candidates(ports, settings, interfaces)
    yield from port_lines(found, settings)
    if not found:
        try:
            choose(ports, settings)
        except BootstrapError as error:
            yield str(error)
        return
    yield f"control connections: {', '.join(interfaces) or 'no interface'}"
    yield from _hints(found[0])
    yield locked_memory_line(max(num_used(found, settings), 1))


def _hints(first: Candidate) -> Iterator[str]:
    if first.gid is not None:
        route = [first.port.number, first.gid.index, 0, 0]
        try:
            mtu = _core.RdmaDevice(first.port.device, route).mtu()
            advice = (
                ""
                if mtu == 4096
                else f"; 4096 needs: ip link set {first.gid.interface} mtu {WHOLE_PACKETS_MTU}"
            )
            yield f"packets of {first.port}: {mtu} bytes{advice}"
        except VerbsError as error:
            yield f"cannot be opened: {error}"
        yield from flow_control_lines(first.gid.interface)


def _interfaces() -> list[str]:
    try:
        return [one.interface for one in choose_addresses(NetworkSettings.from_environment())]
    except BootstrapError:
        return []
