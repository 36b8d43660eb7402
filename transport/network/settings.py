"""The network settings of the environment, read and checked; errors name the variable."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.secret import read_secret
from hccl_py.transport.network.transports import AUTO, TCP, VARIABLE, check_transport

EMULATED_NETWORK = "HCCL_EMULATED_NETWORK"
"""Set in the ranks of `hccl-launch --emulate` alone."""
_MAX_CONNECTIONS = 32
_FAMILIES = {"AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}
_SWITCH = {"0": False, "1": True}
_CORES = {"near": (False, False), "far": (True, False), "crowded": (False, True)}

T = TypeVar("T")


@dataclass(frozen=True)
class NetworkSettings:
    """The settings of connections to other nodes; None is unset.

    Attributes:
        rendezvous_host: MASTER_ADDR; selects the interface unless HCCL_SOCKET_IFNAME does.
        interfaces: HCCL_SOCKET_IFNAME, in NCCL's or gloo's syntax; every match carries a path.
        family: HCCL_SOCKET_FAMILY, for interfaces with addresses of both.
        ports: HCCL_PORT_RANGE: ports to listen on, both ends included.
        num_connections: HCCL_CONNECTIONS, per interface and lane.
        secret: HCCL_SECRET: authenticates connections.
        tls: HCCL_TLS: encrypt traffic between nodes.
        transport: HCCL_TRANSPORT: the provider of messages, see `transports.py`.
        checksum: HCCL_CHECKSUM: add a CRC32C to all traffic between nodes.
        emulated: HCCL_EMULATED_NETWORK: the process that emulates the network between nodes.
        cores: HCCL_CORES: whether cores of a node are far apart, and whether ranks share them.
        store_host: host of the rendezvous store; used if MASTER_ADDR is a loopback address.
    """

    rendezvous_host: str | None = None
    interfaces: str | None = None
    family: socket.AddressFamily | None = None
    ports: range | None = None
    num_connections: int = 1
    secret: bytes | None = field(default=None, repr=False)
    tls: bool = False
    transport: str = AUTO
    checksum: bool = False
    emulated: str | None = None
    cores: tuple[bool, bool] | None = None
    store_host: str | None = None

    @property
    def has_paths(self) -> bool:
        """Whether data goes over the engine's own connections, not those of a provider."""
        return self.transport in (AUTO, TCP)

    @property
    def is_plain(self) -> bool:
        """Whether no setting needs TCP connections."""
        return not self.tls and not self.checksum and self.num_connections == 1

    def compared(self) -> dict[str, str]:
        """Return the settings that `agreed.SETTINGS` compares between ranks."""
        given = {
            "HCCL_CONNECTIONS": self.num_connections,
            "HCCL_TRANSPORT": self.transport,
            "HCCL_CHECKSUM": int(self.checksum),
            "HCCL_TLS": int(self.tls),
        }
        return {name: str(value) for name, value in given.items()}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "NetworkSettings":
        """Read the settings of a process; InvalidArgumentError: one is invalid."""
        given = {name: value for name, value in environ.items() if value}
        settings = cls(
            rendezvous_host=given.get("MASTER_ADDR"),
            interfaces=given.get("HCCL_SOCKET_IFNAME"),
            family=_choice(given, "HCCL_SOCKET_FAMILY", _FAMILIES),
            ports=_port_range(given.get("HCCL_PORT_RANGE")),
            num_connections=_connections(given.get("HCCL_CONNECTIONS", "1")),
            secret=read_secret(environ),
            tls=bool(_choice(given, "HCCL_TLS", _SWITCH)),
            transport=check_transport(given.get(VARIABLE, AUTO)),
            checksum=bool(_choice(given, "HCCL_CHECKSUM", _SWITCH)),
            emulated=given.get(EMULATED_NETWORK),
            cores=_choice(given, "HCCL_CORES", _CORES),
        )
        if settings.has_paths:
            return settings
        if settings.emulated:
            raise InvalidArgumentError(
                f"{VARIABLE}: expected {AUTO} or {TCP} on an emulated network (hccl-launch "
                f"--emulate), got {settings.transport!r}, which makes connections of its own"
            )
        if settings.tls:
            raise InvalidArgumentError(
                f"HCCL_TLS: expected 0 with {VARIABLE}={settings.transport}, which carries data "
                "itself, encrypted or not, got '1'"
            )
        return replace(settings, num_connections=1)


def _choice(given: Mapping[str, str], name: str, choices: Mapping[str, T]) -> T | None:
    text = given.get(name)
    if text is None:
        return None
    if text not in choices:
        raise InvalidArgumentError(f"{name}: expected {' or '.join(choices)}, got {text!r}")
    return choices[text]


def _connections(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= _MAX_CONNECTIONS:
        raise InvalidArgumentError(
            f"HCCL_CONNECTIONS: expected a number from 1 to {_MAX_CONNECTIONS}, got {text!r}"
        )
    return int(text)


def _port_range(text: str | None) -> range | None:
    if text is None:
        return None
    match = re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", text)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise InvalidArgumentError(
            f"HCCL_PORT_RANGE: expected FIRST-LAST within 1-65535, as in 20000-20100, got {text!r}"
        )
    return range(first, last + 1)
