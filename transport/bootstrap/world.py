"""The data of a communicator that one rank's handshakes use, and the name of a connection."""

import hmac
from dataclasses import dataclass, field

from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.network.identity import Endpoint, Member

CONTROL = 0
"""Index of the control connection of a pair of ranks; data lane i has index i + 1."""


@dataclass(frozen=True, order=True)
class Key:
    """A connection: rank of the peer, what it carries (`CONTROL` or 1 + lane), over which path."""

    rank: int
    index: int
    path: int

    def __str__(self) -> str:
        carried = "control" if self.index == CONTROL else f"lane {self.index - 1}"
        return f"{carried} path {self.path}" if self.path else carried


@dataclass(frozen=True)
class World:
    """The data of this rank and its communicator that all handshakes use.

    Attributes:
        communicator_id: random, public; keeps connections of two communicators apart.
        secret: known to members only.
        segment: descriptors passed to ranks of the same node: memfd of the segment, eventfd of the
            doorbell, memfd of the registered memory.
        num_lanes: data lanes to each rank of another node.
        lanes_later: whether lanes are connected when first needed, not at the start.
        num_connections: TCP connections per interface and lane.
        tls: encrypts connections with other nodes; None: they are plain.
        shares_memory: whether ranks of the same node share memory; else they connect as if remote.
    """

    rank: int
    members: tuple[Member, ...]
    communicator_id: bytes
    secret: bytes = field(repr=False)
    segment: tuple[int, int, int]
    num_lanes: int = 1
    lanes_later: bool = False
    num_connections: int = 1
    tls: Tls | None = field(default=None, repr=False)
    shares_memory: bool = True

    @property
    def me(self) -> Member:
        """This rank among the members."""
        return self.members[self.rank]

    @property
    def remote(self) -> list[int]:
        """The ranks that share no memory with this one."""
        return [one.rank for one in self.members if not self.is_local(one.rank)]

    def is_local(self, rank: int) -> bool:
        """Return whether a rank shares memory with this one."""
        return self.shares_memory and self.me.identity.node == self.members[rank].identity.node

    def shares_machine(self, rank: int) -> bool:
        """Return whether this rank reaches another one by loopback, at any of its addresses."""
        return self.me.identity.machine == self.members[rank].identity.machine

    @property
    def num_lanes_at_start(self) -> int:
        """How many data lanes to each rank of another node are connected at the start."""
        return 0 if self.lanes_later else self.num_lanes

    @property
    def ties_interfaces(self) -> bool:
        """Whether paths are tied to interfaces, because there are several."""
        return len(self.me.endpoints) > 1

    def route(self, rank: int, path: int) -> tuple[Endpoint, Endpoint]:
        """Return both ends of a path, this rank's first; paths use the interfaces in turn."""
        mine, theirs = self.me.endpoints, self.members[rank].endpoints
        interface = path % min(len(mine), len(theirs))
        return mine[interface], theirs[interface]

    def num_paths(self, rank: int) -> int:
        """Return how many connections each lane to a rank of another node has.

        Interface i of one rank is joined to interface i of the other; surplus ones stay unused.
        """
        mine, theirs = self.me.endpoints, self.members[rank].endpoints
        return self.num_connections * min(len(mine), len(theirs))

    def path_name(self, rank: int, path: int) -> str:
        """Name interface, addresses and connection of a path, for messages and statistics."""
        here, there = self.route(rank, path)
        name = f"{here.interface} {here.host} -> {there.host}".strip()
        if self.num_connections == 1:
            return name
        number = path // (self.num_paths(rank) // self.num_connections) + 1
        return f"{name} connection {number} of {self.num_connections}"

    def sign(self, purpose: bytes, *parts: bytes) -> bytes:
        """Compute the MAC of fixed-size parts (and one last part of any size) for one purpose."""
        key = hmac.digest(self.secret, b"hccl-py handshake" + self.communicator_id, "sha256")
        return hmac.digest(key, b"\0".join((purpose, *parts)), "sha256")
