"""Endpoints: one end of a queue pair's connection before it is made, for each provider.

shm and tcp make one authenticated connection, with the FullMesh and handshake of a communicator of
two members. The order of the two addresses decides which is rank 0, and the higher rank dials.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import weakref
from contextlib import closing
from dataclasses import astuple, dataclass

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.identity import Endpoint, Identity, Member
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.network.sockets import OpenSockets, bind_listeners, bind_unix
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.providers.interface import MAX_ADDRESS_BYTES, ProviderSettings
from hccl_py.transport.providers.registry import provider_class

_BACKLOG = 16
_ADDRESS_HEADER = struct.Struct("!I32s")

# Peers would not notice the parent's death while a forked child has copies.
_connected = OpenSockets()
register(LifecycleStage.QUEUE_PAIRS, in_forked_child=_connected.close_copies)


class LoopbackEndpoint:
    """Both queue pairs are in this process; threads act as the peers.

    The end that connects first makes both lanes and leaves one for the other end.
    """

    def __init__(self) -> None:
        self.address = secrets.token_bytes(16)
        self._left_for_me: dict[bytes, _core.UnderlyingLane] = {}
        with _local_lock:
            _local_ends[self.address] = self

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect without waiting for the other end, so `timeout_s` is not needed."""
        with _local_lock:
            if remote in self._left_for_me:
                return self._left_for_me.pop(remote)
            peer = _local_ends.get(remote)
            if peer is None:
                raise BootstrapError("loopback: no queue pair of this process has that address")
            mine, theirs = _core.loopback_underlying_lanes()
            peer._left_for_me[self.address] = theirs
            return mine

    def close(self) -> None:
        """Remove this end."""
        with _local_lock:
            _local_ends.pop(self.address, None)
            self._left_for_me.clear()


_local_lock = threading.Lock()
_local_ends: "weakref.WeakValueDictionary[bytes, LoopbackEndpoint]" = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class _Address:
    secret: bytes
    identity: Identity
    unix_name: str
    endpoint: Endpoint

    @classmethod
    def unpack(cls, packed: bytes) -> "_Address":
        try:
            secret, identity, unix_name, endpoint = msgpack.unpackb(packed)
            return cls(secret, Identity(*identity), unix_name, Endpoint(*endpoint))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("this is no address of a queue pair") from error


class RendezvousEndpoint:
    """A listening socket for one authenticated connection, which subclasses turn into a lane."""

    def __init__(self) -> None:
        self._listener, unix_name, endpoint = self._bind()
        self._listener.listen(_BACKLOG)
        self._identity = Identity.of_this_process()
        address = _Address(secrets.token_bytes(32), self._identity, unix_name, endpoint)
        self.address = bytes(msgpack.packb(astuple(address)))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def connect_socket(
        self, remote: bytes, timeout_s: float, descriptors: tuple[int, int, int] | None = None
    ) -> tuple[World, socket.socket, tuple[int, ...]]:
        """Connect to another end; return both ends, a non-blocking socket and its descriptors."""
        addresses = sorted((self.address, remote))
        if addresses[0] == addresses[1]:
            raise InvalidArgumentError("a queue pair cannot be connected with itself")
        ends = [_Address.unpack(packed) for packed in addresses]
        members = tuple(
            Member(rank, end.identity, end.unix_name, (end.endpoint,))
            for rank, end in enumerate(ends)
        )
        # HCCL_SECRET is never sent: the addresses alone do not suffice to connect.
        key = NetworkSettings.from_environment().secret or b""
        secret = hmac.digest(key, b"queue pair" + ends[0].secret + ends[1].secret, "sha256")
        pair_id = hashlib.sha256(b"\0".join(addresses)).digest()[:16]
        rank = addresses.index(self.address)
        passed, shares = descriptors or (-1, -1, -1), descriptors is not None
        world = World(rank, members, pair_id, secret, passed, num_lanes=0, shares_memory=shares)
        with closing(FullMesh(world, [self._listener], Deadline(timeout_s))) as full_mesh:
            pending = full_mesh.run()[Key(1 - rank, CONTROL, 0)]
            received = pending.descriptors
            connected = pending.detach()
        assert isinstance(connected, int)
        return world, socket.socket(fileno=connected), received

    def _bind(self) -> tuple[socket.socket, str, Endpoint]:
        # The first address that communicators would use, see settings.py.
        listeners, endpoints = bind_listeners(NetworkSettings.from_environment())
        for unused in listeners[1:]:
            unused.close()
        return listeners[0], "", endpoints[0]


class ShmSocketEndpoint(RendezvousEndpoint):
    """Shared memory: the Unix connection passes descriptors, and its end signals the peer's."""

    def __init__(self) -> None:
        self._arena = arena_of_this_process()
        self._shm = _core.ShmEndpoint(self._arena)
        super().__init__()

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect to an end on the same node."""
        peer = _Address.unpack(remote).identity
        if peer.node != self._identity.node:
            raise BootstrapError(
                f"shm: the peer (host {peer.host}, pid {peer.pid}) shares no memory with this "
                "process: another host, container or HCCL_NODE_ID; use tcp"
            )
        shared = (self._shm.segment_fd(), self._shm.doorbell_fd(), self._arena.fd())
        world, connected, received = self.connect_socket(remote, timeout_s, shared)
        segment_fd, doorbell_fd, arena_fd = received
        control = connected.detach()
        _connected.add(control)
        return self._shm.connect(world.rank, segment_fd, doorbell_fd, arena_fd, control)

    def _bind(self) -> tuple[socket.socket, str, Endpoint]:
        listener = bind_unix()
        return listener, listener.getsockname()[1:].decode(), Endpoint("", "", 0)


class TcpSocketEndpoint(RendezvousEndpoint):
    """One TCP connection, which carries the queue pair's messages."""

    def __init__(self) -> None:
        if NetworkSettings.from_environment().tls:
            raise InvalidArgumentError(
                "HCCL_TLS=1: queue pairs over tcp are not encrypted; choose zmq, which always is"
            )
        super().__init__()

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect with an end anywhere."""
        connected = self.connect_socket(remote, timeout_s)[1].detach()
        _connected.add(connected)
        return _core.tcp_underlying_lane(connected)


class PythonProviderEndpoint(RendezvousEndpoint):
    """A provider in Python, see `providers/interface.py`: a communicator of two with one lane.

    Such a provider must know its rank before it listens, and its address must not be forged. So the
    two ends first exchange their addresses over an authenticated TCP connection.
    """

    def __init__(self, name: str) -> None:
        make = provider_class(name)  # imports pyzmq, which is slow
        assert make is not None
        self._make = make
        super().__init__()

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect with an end anywhere."""
        deadline = Deadline(timeout_s)
        world, rendezvous, _ = self.connect_socket(remote, deadline.remaining_s)
        with rendezvous:
            here = rendezvous.getsockname()[0]
            ports = NetworkSettings.from_environment().ports
            provider = self._make(ProviderSettings(world.rank, 2, 1, here, ports))
            try:
                rendezvous.settimeout(deadline.remaining_s)
                addresses = exchange_addresses(world, rendezvous, provider.address())
                [lane] = provider.connect(addresses, deadline)[1 - world.rank]
            except BaseException:
                provider.close()
                raise
        return _core.python_underlying_lane(provider, lane)


def exchange_addresses(world: World, rendezvous: socket.socket, address: bytes) -> list[bytes]:
    """Send this end's address and return both ends', by rank; the socket has a timeout.

    BootstrapError: the peer ended, or its address has a wrong signature.
    """
    addresses = [address, address]
    peer = 1 - world.rank
    try:
        mac = world.sign(b"address %d" % world.rank, address)
        rendezvous.sendall(_ADDRESS_HEADER.pack(len(address), mac) + address)
        num_bytes, mac = _ADDRESS_HEADER.unpack(_read(rendezvous, _ADDRESS_HEADER.size))
        if num_bytes > MAX_ADDRESS_BYTES:
            raise BootstrapError(f"the peer's address has {num_bytes} bytes")
        addresses[peer] = _read(rendezvous, num_bytes)
    except OSError as error:
        raise BootstrapError(f"exchanging addresses with the peer: {error}") from error
    if not hmac.compare_digest(mac, world.sign(b"address %d" % peer, addresses[peer])):
        raise BootstrapError("the peer's address was forged on its way")
    return addresses


def _read(connected: socket.socket, num_bytes: int) -> bytes:
    """Receive exactly `num_bytes`: later bytes belong to the next step."""
    received = b""
    while len(received) < num_bytes:
        part = connected.recv(num_bytes - len(received))
        if not part:
            raise BootstrapError("the peer closed the connection; look at its log first")
        received += part
    return received
