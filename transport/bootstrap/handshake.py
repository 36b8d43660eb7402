"""How two ranks prove who they are on a fresh connection, without I/O.

Each side is a generator that yields `Send` and `Receive` requests, which `connection.py` serves. So
the protocol can be tested byte by byte, and one thread can run hundreds of handshakes.

    step          connector                      acceptor
    hello         fixed size, nonce     ->
                                        <-       fixed size, nonce
    proof         HMAC(both hellos)     ->                          drops a stranger here
                                        <-       HMAC(both hellos)
    identity      MAC, msgpack          <->      MAC, msgpack
    descriptors   segment, doorbell, arena  <->  the same three     same node only
    acknowledge   one byte              <->      one byte

The connector proves itself first: a stranger who dials gets a hello that depends on no secret.
Nothing is parsed before the proof but the fixed-size hello, and nothing of it reaches C++.
"""

import hmac
import secrets
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint, Member

CONTROL = 0
"""Index of the control connection of a pair of ranks; data lane i has index i + 1."""

MAX_IDENTITY_BYTES = 4096
NUM_DESCRIPTORS = 3

_MAGIC = b"HCCL-PY\0"
_CONNECTOR, _ACCEPTOR = 1, 2
_HELLO = struct.Struct("!8sHHIIII16s32s")
_FRAME_HEADER = struct.Struct("!I32s")
_PROOF_BYTES = 32
_DESCRIPTORS, _ACKNOWLEDGE = b"D", b"A"


class RejectedError(Exception):
    """The other side of a connection is not what it should be; says why, without secrets."""


@dataclass(frozen=True)
class Send:
    """Request: send these bytes, and these descriptors with the first of them."""

    data: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Receive:
    """Request: receive exactly so many bytes, and up to so many descriptors with them."""

    num_bytes: int
    num_descriptors: int = 0


@dataclass(frozen=True)
class Received:
    """Answer to a request; empty after `Send`. The server of the request owns descriptors."""

    data: bytes = b""
    descriptors: tuple[int, ...] = ()


Steps = Generator[Send | Receive, Received, None]


@dataclass(frozen=True)
class Party:
    """This rank, as all its handshakes see it.

    Attributes:
        rank: this rank.
        members: all ranks.
        communicator_id: random, public; keeps connections of two communicators apart.
        secret: known to members only.
        segment: what ranks of the same node are handed: memfd of the segment, eventfd of the
            doorbell, memfd of the registered memory.
        num_lanes: data lanes to each rank of another node.
        num_connections: per interface and lane.
        tls: encrypts connections with other nodes; None: they are plain.
        shares_memory: whether ranks of the same node do; else they are wired like all others.
    """

    rank: int
    members: tuple[Member, ...]
    communicator_id: bytes
    secret: bytes = field(repr=False)
    segment: tuple[int, int, int]
    num_lanes: int = 1
    num_connections: int = 1
    tls: Tls | None = field(default=None, repr=False)
    shares_memory: bool = True

    def is_local(self, rank: int) -> bool:
        """Say whether a rank shares memory with this one."""
        return self.shares_memory and self.members[rank].node == self.members[self.rank].node

    def shares_machine(self, rank: int) -> bool:
        """Say whether this rank reaches another one by loopback, at any of its addresses."""
        return self.members[rank].machine == self.members[self.rank].machine

    @property
    def ties_interfaces(self) -> bool:
        """Whether paths are tied to interfaces, because there are several."""
        return len(self.members[self.rank].endpoints) > 1

    def route(self, rank: int, path: int) -> tuple[Endpoint, Endpoint]:
        """Return this rank's and the other rank's end of a path.

        Paths go round the interfaces, and interface i of one rank is joined to interface i of the
        other; where they have different numbers of interfaces, the last ones of one stay unused.
        """
        mine, theirs = self.members[self.rank].endpoints, self.members[rank].endpoints
        interface = path % min(len(mine), len(theirs))
        return mine[interface], theirs[interface]

    def num_paths(self, rank: int) -> int:
        """Return how many connections each lane to a rank of another node has."""
        mine, theirs = self.members[self.rank].endpoints, self.members[rank].endpoints
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


class _Hello(NamedTuple):
    version: int
    role: int
    source: int
    target: int
    carried: int
    path: int
    communicator_id: bytes
    nonce: bytes

    def pack(self) -> bytes:
        return _HELLO.pack(_MAGIC, *self)

    @classmethod
    def unpack(cls, data: bytes, role: int) -> "_Hello":
        magic, *fields = _HELLO.unpack(data)
        hello = cls(*fields)
        if magic != _MAGIC:
            raise RejectedError("it does not speak this protocol")
        if hello.version != PROTOCOL_VERSION:
            raise RejectedError(f"it speaks version {hello.version}, this is {PROTOCOL_VERSION}")
        if hello.role != role:
            raise RejectedError("it is on the wrong side of the connection")
        return hello


class Handshake:
    """One side of the handshake of one connection.

    Attributes:
        step: what is going on, for error messages.
        peer: the other rank; only claimed until `authenticated`.
        index: what the connection carries (`CONTROL` or 1 + lane).
        path: over which of the pair's paths.
        authenticated: the other side knows the secret.
    """

    def __init__(self, party: Party) -> None:
        """Prepare; `connect` or `accept` runs it."""
        self.step = "hello"
        self.peer: Member | None = None
        self.index = CONTROL
        self.path = 0
        self.authenticated = False
        self._party = party

    def connect(self, peer: Member, index: int, path: int = 0) -> Steps:
        """Return the side that dialled `peer`, ready to run."""
        # Not in the generator: a connection that is rejected before it runs needs a peer too.
        self.peer, self.index, self.path = peer, index, path
        return self._connect(peer)

    def _connect(self, peer: Member) -> Steps:
        hello = self._hello(_CONNECTOR)
        yield Send(hello)
        answer = yield from _receive(_HELLO.size)
        theirs = _Hello.unpack(answer, _ACCEPTOR)
        if theirs.source != peer.rank or not self._fits(theirs):
            raise RejectedError("it answered for another connection")
        self.step = "proof"
        yield Send(self._party.sign(b"connector", hello, answer))
        self._check_mac(
            (yield from _receive(_PROOF_BYTES)), self._party.sign(b"acceptor", hello, answer)
        )
        self.authenticated = True
        yield from self._introduce(b"connector", b"acceptor", hello + answer)

    def accept(self, is_expected: Callable[[int, int, int], bool]) -> Steps:
        """Return the side that was dialled, ready to run.

        Args:
            is_expected: says of a rank, an index and a path whether that connection may come.
        """
        hello = yield from _receive(_HELLO.size)
        theirs = _Hello.unpack(hello, _CONNECTOR)
        is_member = theirs.source < len(self._party.members)
        if not (is_member and is_expected(theirs.source, theirs.carried, theirs.path)):
            raise RejectedError("it claims to be a connection that is not expected here")
        self.peer = self._party.members[theirs.source]
        self.index, self.path = theirs.carried, theirs.path
        if not self._fits(theirs):
            raise RejectedError("it dialled for another rank or communicator")
        answer = self._hello(_ACCEPTOR)
        yield Send(answer)
        self.step = "proof"
        self._check_mac(
            (yield from _receive(_PROOF_BYTES)), self._party.sign(b"connector", hello, answer)
        )
        self.authenticated = True
        yield Send(self._party.sign(b"acceptor", hello, answer))
        yield from self._introduce(b"acceptor", b"connector", hello + answer)

    def _introduce(self, here: bytes, there: bytes, transcript: bytes) -> Steps:
        """Exchange identities, descriptors and acknowledgements; the same on both sides."""
        self.step = "identity"
        me = self._party.members[self._party.rank]
        content = bytes(msgpack.packb(_identity_of(me)))
        mac = self._party.sign(here + b" identity", transcript, content)
        yield Send(_FRAME_HEADER.pack(len(content), mac) + content)
        num_bytes, mac = _FRAME_HEADER.unpack((yield from _receive(_FRAME_HEADER.size)))
        if num_bytes > MAX_IDENTITY_BYTES:
            raise RejectedError(f"its identity has {num_bytes} bytes, > {MAX_IDENTITY_BYTES}")
        content = yield from _receive(num_bytes)
        self._check_mac(mac, self._party.sign(there + b" identity", transcript, content))
        self._check_identity(content)
        assert self.peer is not None
        if self._party.is_local(self.peer.rank):
            self.step = "descriptors"
            yield Send(_DESCRIPTORS, self._party.segment)
            received = yield Receive(len(_DESCRIPTORS), NUM_DESCRIPTORS)
            if received.data != _DESCRIPTORS or len(received.descriptors) != NUM_DESCRIPTORS:
                raise RejectedError(
                    f"it passed {len(received.descriptors)} descriptors, not {NUM_DESCRIPTORS}"
                )
        self.step = "acknowledge"
        yield Send(_ACKNOWLEDGE)
        if (yield from _receive(len(_ACKNOWLEDGE))) != _ACKNOWLEDGE:
            raise RejectedError("it did not acknowledge")

    def _hello(self, role: int) -> bytes:
        assert self.peer is not None
        return _Hello(
            PROTOCOL_VERSION,
            role,
            self._party.rank,
            self.peer.rank,
            self.index,
            self.path,
            self._party.communicator_id,
            secrets.token_bytes(32),
        ).pack()

    def _fits(self, hello: _Hello) -> bool:
        return (
            hello.target == self._party.rank
            and (hello.carried, hello.path) == (self.index, self.path)
            and hello.communicator_id == self._party.communicator_id
        )

    def _check_mac(self, received: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(received, expected):
            raise RejectedError(
                "it does not know this communicator's secret (HCCL_SECRET differs?)"
            )

    def _check_identity(self, content: bytes) -> None:
        """Catch a rank that was replaced between rendezvous and connecting."""
        try:
            received = msgpack.unpackb(content)
        except ValueError as error:
            raise RejectedError(f"its identity is no msgpack: {error}") from error
        assert self.peer is not None
        if received != _identity_of(self.peer):
            raise RejectedError(
                f"it is not the process that met at the store: {str(received)[:200]}"
            )


def _identity_of(member: Member) -> dict[str, int | str]:
    return {"rank": member.rank, "host": member.host, "pid": member.pid, "node": member.node}


def _receive(num_bytes: int) -> Generator[Send | Receive, Received, bytes]:
    received = yield Receive(num_bytes)
    return received.data
