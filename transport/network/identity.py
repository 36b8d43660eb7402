"""The identity of a rank, and which ranks share a node.

Two ranks are on one node if and only if they can share memory: same boot of the same kernel, same
network namespace (abstract Unix sockets live in it) and the same HCCL_NODE_ID. LOCAL_WORLD_SIZE
and host names do not count: containers and launchers set both at will.
"""

import itertools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from hccl_py.transport.arguments import text
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.system_calls import can_share_memory, usable_cores

PROTOCOL_VERSION = 14
"""Incremented with every change of the messages between ranks: call fingerprints and the layout of
shared memory included."""

_MAX_NODE_ID_BYTES = 256

_num_alone = itertools.count()


@dataclass(frozen=True)
class Identity:
    """The place where a rank runs.

    Attributes:
        host, pid: host name and process id in its own pid namespace, for messages only.
        boot_id: one boot of one kernel.
        network_namespace: inode of the namespace.
        node_id: HCCL_NODE_ID; splits one host into emulated nodes.
        cores: CPUs that this process may use, as the bits of a hexadecimal number.
    """

    host: str
    pid: int
    boot_id: str
    network_namespace: int
    node_id: str
    cores: str = "0"

    @classmethod
    def of_this_process(cls, node_id: str | None = None) -> "Identity":
        """Read the identity of this process; `node_id` replaces HCCL_NODE_ID."""
        if node_id is None:
            node_id = text("HCCL_NODE_ID", os.environ.get("HCCL_NODE_ID", ""))
        if len(node_id.encode()) > _MAX_NODE_ID_BYTES:
            raise BootstrapError(f"HCCL_NODE_ID is longer than {_MAX_NODE_ID_BYTES} bytes")
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot_id = file.read().strip()
            network_namespace = os.stat("/proc/self/ns/net").st_ino
        except OSError as error:
            raise BootstrapError(f"cannot determine which node this is: {error}") from error
        if not can_share_memory():  # each rank, of this process too, is its own node
            node_id = f"{node_id}/{os.getpid()}.{next(_num_alone)}"
        cores = f"{sum(1 << cpu for cpu in usable_cores()):x}"
        return cls(socket.gethostname(), os.getpid(), boot_id, network_namespace, node_id, cores)

    @property
    def machine(self) -> tuple[str, int]:
        """Equal for ranks that reach each other's loopback addresses."""
        return (self.boot_id, self.network_namespace)

    @property
    def node(self) -> tuple[str, int, str]:
        """Equal for ranks that share memory."""
        return (*self.machine, self.node_id)


def count_cores(ranks: Iterable[Identity]) -> int:
    """Count the CPUs that any of these ranks of one host may use."""
    bits = 0
    for one in ranks:
        bits |= int(one.cores, 16)
    return bits.bit_count()


def are_crowded(ranks: Iterable[Identity]) -> bool:
    """Return whether a machine has more of these ranks than CPUs that they may use."""
    kernels: dict[str, list[Identity]] = {}
    for one in ranks:
        kernels.setdefault(one.boot_id, []).append(one)
    return any(len(those) > count_cores(those) for those in kernels.values())


@dataclass(frozen=True)
class Endpoint:
    """The address at which a rank listens on one network.

    Attributes:
        interface: its name on that rank's host, "" if unknown.
        host: numeric address.
        port: 0 before it is bound.
    """

    interface: str
    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.interface} {self.host}".strip()


@dataclass(frozen=True)
class Member:
    """One rank of a communicator, as described to all others.

    Attributes:
        unix_name: its abstract Unix socket, without the leading zero byte.
        endpoints: its addresses for other nodes, one per interface; may be empty.
        certificate: its TLS certificate in DER; empty without TLS.
    """

    rank: int
    identity: Identity
    unix_name: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    certificate: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.identity.host} (pid {self.identity.pid})"
