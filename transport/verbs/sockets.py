"""The shm and tcp providers: one authenticated connection between two queue pairs.

FullMesh and handshake are those of communicators, with a party of two. The order of the two
addresses decides which is rank 0, and the higher rank dials.
"""

import hashlib
import hmac
import secrets
import socket
from contextlib import closing
from dataclasses import astuple, dataclass

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.handshake import CONTROL, Key, Party
from hccl_py.transport.network.identity import Endpoint, Identity, Member
from hccl_py.transport.network.listeners import bind_listeners
from hccl_py.transport.network.open_sockets import OpenSockets
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.process_lifecycle import Stage, register

from ..arena import arena_of_this_process
from ..deadline import Deadline
from ..errors import BootstrapError, InvalidArgumentError

_BACKLOG = 16
_NO_DESCRIPTORS = (-1, -1, -1)

# While a forked child has copies of them, peers do not notice its parent's death.
_connected = OpenSockets()
register(Stage.QUEUE_PAIRS, in_forked_child=_connected.close_copies)


@dataclass(frozen=True)
class _Address:
    """What one end sends the other."""

    secret: bytes
    host: str
    pid: int
    machine: tuple[str, int]
    node_id: str
    unix_name: str
    endpoint: tuple[str, str, int]

    def pack(self) -> bytes:
        return bytes(msgpack.packb(astuple(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> "_Address":
        try:
            secret, host, pid, machine, node_id, unix_name, endpoint = msgpack.unpackb(packed)
            return cls(secret, host, pid, tuple(machine), node_id, unix_name, tuple(endpoint))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("this is no address of a queue pair") from error

    def member(self, rank: int, node: int) -> Member:
        endpoints = (Endpoint(*self.endpoint),)
        return Member(rank, self.host, self.pid, node, self.unix_name, endpoints, self.machine)


class _SocketEndpoint:
    """A listening socket and what a handshake needs. Subclasses make a lane of it."""

    def __init__(self, listener: socket.socket, unix_name: str, endpoint: Endpoint) -> None:
        listener.listen(_BACKLOG)
        self._listener = listener
        me = Identity.of_this_process()
        self._address = _Address(
            secrets.token_bytes(32),
            me.host,
            me.pid,
            me.machine,
            me.node_id,
            unix_name,
            astuple(endpoint),
        )
        self.address = self._address.pack()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _party(
        self, remote: bytes, nodes: tuple[int, int], descriptors: tuple[int, int, int]
    ) -> Party:
        addresses = sorted((self.address, remote))
        if addresses[0] == addresses[1]:
            raise InvalidArgumentError("a queue pair cannot be connected with itself")
        ends = [_Address.unpack(packed) for packed in addresses]
        members = tuple(
            end.member(rank, node) for rank, (end, node) in enumerate(zip(ends, nodes, strict=True))
        )
        # HCCL_SECRET never travels: the addresses alone do not suffice to connect.
        key = NetworkSettings.from_environment().secret or b""
        secret = hmac.digest(key, b"queue pair" + ends[0].secret + ends[1].secret, "sha256")
        pair_id = hashlib.sha256(b"\0".join(addresses)).digest()[:16]
        rank = addresses.index(self.address)
        return Party(rank, members, pair_id, secret, descriptors, num_lanes=0)


class ShmSocketEndpoint(_SocketEndpoint):
    """Shared memory: the Unix connection passes descriptors, and its end shows that of the peer."""

    def __init__(self) -> None:
        """Make the shared memory, and listen on a Unix socket without a file."""
        self._arena = arena_of_this_process()
        self._shm = _core.ShmEndpoint(self._arena)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(f"\0hccl-{secrets.token_hex(16)}")
        name = listener.getsockname()[1:].decode()
        super().__init__(listener, name, Endpoint("", "", 0))

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect with an end on the same node."""
        peer, me = _Address.unpack(remote), self._address
        if (peer.machine, peer.node_id) != (me.machine, me.node_id):
            raise BootstrapError(
                f"shm: the peer (host {peer.host}, pid {peer.pid}) shares no memory with this "
                "process: another host, container or HCCL_NODE_ID; use tcp"
            )
        shared = (self._shm.segment_fd(), self._shm.doorbell_fd(), self._arena.fd())
        party = self._party(remote, (0, 0), shared)
        with closing(FullMesh(party, [self._listener], Deadline(timeout_s))) as full_mesh:
            pending = full_mesh.run()[Key(1 - party.rank, CONTROL, 0)]
            segment_fd, doorbell_fd, arena_fd = pending.descriptors
            control = pending.detach()
            assert isinstance(control, int)
            _connected.add(control)
            return self._shm.connect(party.rank, segment_fd, doorbell_fd, arena_fd, control)


class RendezvousEndpoint(_SocketEndpoint):
    """A TCP connection as such: whatever the two ends then do with it."""

    def __init__(self) -> None:
        """Listen on the first of the addresses that communicators would use: see settings.py."""
        listeners, endpoints = bind_listeners(NetworkSettings.from_environment())
        for unused in listeners[1:]:
            unused.close()
        super().__init__(listeners[0], "", endpoints[0])

    def connect_socket(self, remote: bytes, timeout_s: float) -> tuple[Party, socket.socket]:
        """Connect with an end anywhere.

        Returns:
            The two ends, and the bare connection, non-blocking.
        """
        party = self._party(remote, (0, 1), _NO_DESCRIPTORS)
        with closing(FullMesh(party, [self._listener], Deadline(timeout_s))) as full_mesh:
            connected = full_mesh.run()[Key(1 - party.rank, CONTROL, 0)].detach()
            assert isinstance(connected, int)
            return party, socket.socket(fileno=connected)


class TcpSocketEndpoint(RendezvousEndpoint):
    """One TCP connection, which carries the queue pair's messages."""

    def __init__(self) -> None:
        """Listen; raises where everything has to be encrypted."""
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
