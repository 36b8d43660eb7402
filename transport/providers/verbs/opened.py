"""An RDMA port that this process has opened, and how a queue pair on it describes itself."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv6Address

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, VerbsError
from hccl_py.transport.network.rejections import logger
from hccl_py.transport.providers.verbs.choice import choose
from hccl_py.transport.providers.verbs.devices import list_ports
from hccl_py.transport.providers.verbs.settings import RdmaSettings

DESCRIPTION = struct.Struct("!16sIII")
"""GID, number of the queue pair, PSN of its first packet, bytes of a packet."""


class OpenedPort:
    """A port, open; the engine's objects keep the device alive.

    Attributes:
        core: the engine's device.
        port: what the kernel says of it.
        gid: the address that its packets carry.
    """

    def __init__(self, settings: RdmaSettings, interfaces: Collection[str] = ()) -> None:
        """Open the port that the settings choose; BootstrapError: there is none to use."""
        self.port, self.gid = choose(list_ports(), settings, interfaces)
        route = self.port.number, self.gid.index, settings.traffic_class, settings.service_level
        try:
            self.core = _core.RdmaDevice(self.port.device, list(route))
        except VerbsError as error:
            raise BootstrapError(str(error)) from error

    @classmethod
    def by_name(cls, name: str) -> OpenedPort:
        """Open `DEVICE` or `DEVICE:PORT`; empty: what HCCL_IB_HCA chooses."""
        settings = RdmaSettings.from_environment()
        return cls(replace(settings, devices=f"={name}") if name else settings)

    def log(self) -> None:
        """Say that it is used, and how."""
        logger.info("RDMA over %s, GID %s, MTU %d", self.port, self.gid, self.core.mtu())

    def describe(self, pair: _core.RdmaQueuePair) -> bytes:
        """Return what the peer of a queue pair needs to know."""
        gid = self.gid.address.packed
        return DESCRIPTION.pack(gid, pair.number(), pair.psn(), self.core.mtu())

    def read_description(self, packed: bytes) -> _core.RdmaPeer:
        """Return the peer that described itself; BootstrapError: it is on another network."""
        gid, number, psn, mtu = DESCRIPTION.unpack(packed)
        theirs = IPv6Address(gid)
        if not 256 <= mtu <= 4096:
            raise BootstrapError(f"the peer at {theirs} has an MTU of {mtu}")
        if (theirs.ipv4_mapped is None) != (self.gid.address.ipv4_mapped is None):
            raise BootstrapError(
                f"the GID here is {self.gid.ip}, the peer's is {theirs.ipv4_mapped or theirs}: "
                "expected IPv4 on both or IPv6 on both"
            )
        return _core.RdmaPeer(list(gid), number, psn, mtu)
