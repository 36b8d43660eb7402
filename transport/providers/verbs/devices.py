"""The RDMA ports of this host and their GIDs, read from /sys.

This needs no library, so `hccl-perftest --devices` works without libibverbs.
"""

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

ROCE_V2 = "RoCE v2"
ETHERNET = "Ethernet"
INFINIBAND = "InfiniBand"
ACTIVE = "ACTIVE"
_SYSFS = Path("/sys/class/infiniband")
_NETWORK = Path("/sys/class/net")
_HEADER_BYTES = 96
"""Upper limit of RoCE's headers and trailers per packet."""
_PAYLOADS = (4096, 2048, 1024, 512, 256)


@dataclass(frozen=True)
class Gid:
    """An address of a port.

    Attributes:
        index: in the port's table.
        address: an IPv4 address stands as ::ffff:A.B.C.D.
        kind: `RoCE v2`, `IB/RoCE v1`.
        interface: its network interface; empty if the kernel names none.
    """

    index: int
    address: IPv6Address
    kind: str
    interface: str

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        """The address as people write it."""
        return self.address.ipv4_mapped or self.address

    def __str__(self) -> str:
        return f"{self.index}: {self.ip} ({self.kind}, {self.interface or 'no interface'})"


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device.

    Attributes:
        device: name, as in HCCL_IB_HCA.
        number: from 1.
        state: `ACTIVE`, `DOWN` and others.
        link_layer: `Ethernet` (RoCE) or `InfiniBand`.
        rate: as the kernel writes it.
        gids: those that are set.
    """

    device: str
    number: int
    state: str
    link_layer: str
    rate: str
    gids: tuple[Gid, ...]

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"


def list_ports(sysfs: Path = _SYSFS) -> tuple[RdmaPort, ...]:
    """Return all ports, by device name; none if the kernel has no RDMA."""
    found = []
    for device in sorted(sysfs.glob("*")):
        for port in sorted(device.glob("ports/*"), key=lambda folder: int(folder.name)):
            state = _read(port / "state").partition(": ")[2]
            layer, rate = _read(port / "link_layer"), _read(port / "rate")
            gids = _gids(port)
            found.append(RdmaPort(device.name, int(port.name), state, layer, rate, gids))
    return tuple(found)


def roce_mtu(interface: str, sysfs: Path = _NETWORK) -> int | None:
    """Return the RoCE payload bytes per packet on this interface; None: unknown."""
    mtu = int((interface and _read(sysfs / interface / "mtu")) or 0)
    return next((size for size in _PAYLOADS if size + _HEADER_BYTES <= mtu), None)


def may_open(device: str) -> bool:
    """Return whether this process may open the device's file in /dev/infiniband."""
    for entry in Path("/sys/class/infiniband_verbs").glob("*/ibdev"):
        if _read(entry) == device:
            return os.access(Path("/dev/infiniband") / entry.parent.name, os.R_OK | os.W_OK)
    return False


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for entry in sorted(port.glob("gids/*"), key=lambda file: int(file.name)):
        text = _read(entry)
        if not text or not int(address := IPv6Address(text)):
            continue
        kind = _read(port / "gid_attrs" / "types" / entry.name)
        interface = _read(port / "gid_attrs" / "ndevs" / entry.name)
        found.append(Gid(int(entry.name), address, kind, interface))
    return tuple(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # an unset entry fails with EINVAL; a device can vanish at any time
        return ""
