"""The RDMA ports of this host as text: each port, and whether and why it is used or not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hccl_py.transport.providers.verbs.choice import Candidate
from hccl_py.transport.providers.verbs.devices import ETHERNET, roce_mtu
from hccl_py.transport.providers.verbs.locked_memory import locked_bytes, locked_bytes_per_peer
from hccl_py.transport.providers.verbs.settings import RdmaSettings

WHOLE_PACKETS_MTU = 4200
"""Of an interface whose RoCE packets hold 4096 bytes."""


def port_lines(looked_at: Sequence[Candidate], settings: RdmaSettings) -> Iterator[str]:
    """Yield each port with its GIDs, and whether it is used, as `choice.choose` says."""
    for index, one in enumerate(looked_at):
        port = one.port
        is_used = index < num_used(looked_at, settings)
        what = f"used, with GID {one.gid}" if is_used else one.problem or "not needed"
        kind = f"{port.link_layer}, {port.rate or 'no rate'}, {port.state or 'gone'}"
        interface = next((gid.interface for gid in port.gids if gid.interface), "")
        mtu = roce_mtu(interface) if port.link_layer == ETHERNET else None
        yield f"{port} ({kind}{f', RoCE MTU {mtu}' if mtu else ''}): {what}"
        for gid in port.gids:
            yield f"    GID {gid}"


def num_used(looked_at: Sequence[Candidate], settings: RdmaSettings) -> int:
    """Count the ports in use: the first usable ones."""
    usable = sum(one.gid is not None for one in looked_at)
    return usable if settings.lists_devices else min(usable, 1)


def locked_memory_line(num_devices: int) -> str:
    """Describe how much memory may be registered, and for how many peers that suffices."""
    locked = locked_bytes()
    if locked is None:
        return "locked memory: unlimited"
    peers = locked // locked_bytes_per_peer(num_devices)
    return (
        f"locked memory: {locked >> 20} MiB, enough for {peers} ranks of other nodes; "
        "raise it: ulimit -l unlimited"
    )


def flow_control_lines(interface: str) -> Iterator[str]:
    """Describe the flow control that RoCE needs: lost packets cost whole retry times."""
    if Path(f"/sys/class/net/{interface}/device").exists():
        yield (
            f"flow control: check PFC with `mlnx_qos -i {interface}` or `dcb pfc show dev "
            f"{interface}`, ECN with `dcb -j app show dev {interface}`; HCCL_IB_TC sets the DSCP"
        )
