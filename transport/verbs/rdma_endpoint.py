"""Endpoints of RDMA queue pairs, which meet over an authenticated TCP connection."""

import socket

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.world import World
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.providers.verbs.opened import DESCRIPTION, OpenedPort
from hccl_py.transport.verbs.endpoints import RendezvousEndpoint, exchange_addresses

_READY = b"ready"


class RdmaEndpoint(RendezvousEndpoint):
    """One end of a queue pair in INIT."""

    def __init__(self, opened: OpenedPort, pair: _core.RdmaQueuePair) -> None:
        super().__init__()
        self._opened = opened
        self._description = opened.describe(pair)
        self._met: tuple[World, socket.socket, Deadline] | None = None

    def connect(self, remote: bytes, timeout_s: float) -> _core.RdmaPeer:
        """Connect to the other end; both authenticate before they exchange descriptions."""
        deadline = Deadline(timeout_s)
        world, rendezvous, _ = self.connect_socket(remote, deadline.remaining_s)
        self._met = world, rendezvous, deadline
        return self._opened.read_description(self._exchange(self._description, DESCRIPTION.size))

    def await_peer(self) -> None:
        """Wait until the peer is in RTR: earlier packets are lost, and resent too late."""
        if self._exchange(_READY, len(_READY)) != _READY:
            raise BootstrapError("the peer is at another step of connecting")

    def close(self) -> None:
        """Close the connection and stop listening."""
        if self._met is not None:
            self._met[1].close()
        super().close()

    def _exchange(self, description: bytes, num_bytes: int) -> bytes:
        assert self._met is not None
        world, rendezvous, deadline = self._met
        rendezvous.settimeout(max(deadline.remaining_s, 1e-3))
        theirs = exchange_addresses(world, rendezvous, description)[1 - world.rank]
        if len(theirs) != num_bytes:
            raise BootstrapError(f"the peer described itself in {len(theirs)} bytes of {num_bytes}")
        return theirs
