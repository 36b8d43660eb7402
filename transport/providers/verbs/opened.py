"""An RDMA port that this process has opened, and the description of its queue pairs."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv6Address

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, VerbsError
from hccl_py.transport.network.rejections import logger
from hccl_py.transport.providers.verbs.choice import choose
from hccl_py.transport.providers.verbs.devices import Gid, RdmaPort, list_ports
from hccl_py.transport.providers.verbs.settings import RdmaSettings

DESCRIPTION = struct.Struct("!16sIIIH")
"""GID, number of the queue pair, PSN of its first packet, bytes of a packet, LID (InfiniBand)."""


class OpenedPort:
    """A port, open; the engine's objects keep the device alive.

    Attributes:
        core: the engine's device.
        port: the kernel's description.
        gid: the address that its packets carry.
    """

    def __init__(self, port: RdmaPort, gid: Gid, settings: RdmaSettings) -> None:
        """Open the port; BootstrapError: it cannot be."""
        self.port, self.gid = port, gid
        route = port.number, gid.index, settings.traffic_class, settings.service_level
        try:
            self.core = _core.RdmaDevice(port.device, list(route))
        except VerbsError as error:
            raise BootstrapError(str(error)) from error

    @classmethod
    def chosen(
        cls, settings: RdmaSettings, interfaces: Collection[str] = ()
    ) -> tuple[OpenedPort, ...]:
        """Open the ports that the settings choose; BootstrapError: there is none to use."""
        return tuple(cls(*one, settings) for one in choose(list_ports(), settings, interfaces))

    @classmethod
    def by_name(cls, name: str) -> OpenedPort:
        """Open `DEVICE` or `DEVICE:PORT`; empty: the first that HCCL_IB_HCA chooses."""
        settings = RdmaSettings.from_environment()
        settings = replace(settings, devices=f"={name}") if name else settings
        return cls(*choose(list_ports(), settings)[0], settings)

    def log(self) -> None:
        """Log that the port is used, and how."""
        logger.info("RDMA over %s, GID %s, MTU %d", self.port, self.gid, self.core.mtu())

    def describe(self, pair: _core.RdmaQueuePair) -> bytes:
        """Return a queue pair's description for its peer."""
        gid = self.gid.address.packed
        return DESCRIPTION.pack(gid, pair.number(), pair.psn(), self.core.mtu(), self.core.lid())

    def read_description(self, packed: bytes) -> _core.RdmaPeer:
        """Parse a peer's description; BootstrapError: it is on another network."""
        gid, number, psn, mtu, lid = DESCRIPTION.unpack(packed)
        theirs = IPv6Address(gid)
        if not 256 <= mtu <= 4096:
            raise BootstrapError(f"the peer at {theirs} has an MTU of {mtu}")
        if (lid == 0) != (self.core.lid() == 0):
            raise BootstrapError(
                f"the port here is {self.port} ({self.port.link_layer}), the peer's is of another "
                "link layer: expected RoCE on both or InfiniBand on both; see HCCL_IB_HCA"
            )
        if (theirs.ipv4_mapped is None) != (self.gid.address.ipv4_mapped is None):
            raise BootstrapError(
                f"the GID here is {self.gid.ip}, the peer's is {theirs.ipv4_mapped or theirs}: "
                "expected IPv4 on both or IPv6 on both"
            )
        return _core.RdmaPeer(list(gid), number, psn, mtu, lid)
