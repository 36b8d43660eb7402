"""The shm and tcp providers: one authenticated connection between two queue pairs.

Wiring and handshake are those of communicators, with a party of two. The order of the two
addresses says who is rank 0, and the higher rank dials.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
from dataclasses import astuple, dataclass

import msgpack  # type: ignore[import-untyped]

from .. import _core
from ..arena import arena_of_this_process
from ..deadline import Deadline
from ..errors import BootstrapError, InvalidArgumentError
from ..handshake import CONTROL, Party
from ..identity import Identity, Member
from ..interfaces import address_family, choose_address
from ..wiring import Wiring

_BACKLOG = 16


@dataclass(frozen=True)
class _Address:
    """What one end tells the other."""

    secret: bytes
    host: str
    pid: int
    node: tuple[str, int, str]
    unix_name: str
    tcp_host: str
    tcp_port: int

    def pack(self) -> bytes:
        return bytes(msgpack.packb(astuple(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> "_Address":
        try:
            secret, host, pid, node, *listening = msgpack.unpackb(packed)
            return cls(secret, host, pid, tuple(node), *listening)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("this is no address of a queue pair") from error


class _SocketEndpoint:
    """A listening socket and what a handshake needs. Subclasses say what it becomes."""

    def __init__(self, listener: socket.socket, unix_name: str, tcp: tuple[str, int]) -> None:
        self._listener = listener
        me = Identity.of_this_process()
        self._address = _Address(secrets.token_bytes(32), me.host, me.pid, me.node, unix_name, *tcp)
        self.address = self._address.pack()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _party(self, remote: bytes, nodes: tuple[int, int], shared: tuple[int, int, int]) -> Party:
        addresses = sorted((self.address, remote))
        if addresses[0] == addresses[1]:
            raise InvalidArgumentError("a queue pair cannot be connected with itself")
        ends = [_Address.unpack(packed) for packed in addresses]
        members = tuple(
            Member(rank, end.host, end.pid, node, end.unix_name, (end.tcp_host, end.tcp_port))
            for rank, (end, node) in enumerate(zip(ends, nodes, strict=True))
        )
        # HCCL_SECRET never travels: who only saw the addresses cannot connect.
        key = os.environ.get("HCCL_SECRET", "").encode()
        secret = hmac.digest(key, b"queue pair" + ends[0].secret + ends[1].secret, "sha256")
        pair_id = hashlib.sha256(b"\0".join(addresses)).digest()[:16]
        return Party(addresses.index(self.address), members, pair_id, secret, shared)


class ShmSocketEndpoint(_SocketEndpoint):
    """Shared memory: the Unix connection passes the descriptors, then tells of the peer's death."""

    def __init__(self) -> None:
        """Make the shared memory, and listen on a Unix socket without a file."""
        self._arena = arena_of_this_process()
        self._shm = _core.ShmEndpoint(self._arena)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(f"\0hccl-{secrets.token_hex(16)}")
        listener.listen(_BACKLOG)
        super().__init__(listener, listener.getsockname()[1:].decode(), ("", 0))

    def connect(self, remote: bytes, timeout_s: float) -> _core.Carrier:
        """Connect with an end on the same node."""
        peer = _Address.unpack(remote)
        if peer.node != self._address.node:
            raise BootstrapError(
                f"shm: the peer (host {peer.host}, pid {peer.pid}) shares no memory with this "
                "process: another host, container or HCCL_NODE_ID; use tcp"
            )
        shared = (self._shm.segment_fd(), self._shm.doorbell_fd(), self._arena.fd())
        party = self._party(remote, (0, 0), shared)
        with Wiring(party, 0, [self._listener], Deadline(timeout_s)) as wiring:
            line = wiring.run()[1 - party.rank, CONTROL]
            segment_fd, doorbell_fd, arena_fd = line.descriptors
            return self._shm.connect(party.rank, segment_fd, doorbell_fd, arena_fd, line.detach())


class TcpSocketEndpoint(_SocketEndpoint):
    """One TCP connection."""

    def __init__(self) -> None:
        """Listen where communicators do: see interfaces.py."""
        host = choose_address(
            os.environ.get("MASTER_ADDR") or None, os.environ.get("HCCL_SOCKET_IFNAME") or None
        )
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(socket.socket(address_family(host)))
            listener.setblocking(False)
            try:
                listener.bind((host, 0))
            except OSError as error:
                raise BootstrapError(f"cannot listen on {host}: {error}") from error
            listener.listen(_BACKLOG)
            opened.pop_all()
        super().__init__(listener, "", (host, listener.getsockname()[1]))

    def connect(self, remote: bytes, timeout_s: float) -> _core.Carrier:
        """Connect with an end anywhere."""
        return _core.tcp_carrier(self.connect_socket(remote, timeout_s).detach())

    def connect_socket(self, remote: bytes, timeout_s: float) -> socket.socket:
        """Connect, and hand out the bare connection, non-blocking."""
        party = self._party(remote, (0, 1), (-1, -1, -1))
        with Wiring(party, 0, [self._listener], Deadline(timeout_s)) as wiring:
            line = wiring.run()[1 - party.rank, CONTROL]
            return socket.socket(fileno=line.detach())
