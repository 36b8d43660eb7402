"""How two ranks prove who they are on a fresh connection, without I/O.

A subclass has the wire (`connection.py`, or a test). All steps are generators that yield the
selector event to wait for: one thread runs hundreds of handshakes.

    step          connector                      acceptor
    hello         fixed size, nonce     ->
                                        <-       fixed size, nonce
    proof         HMAC(both hellos)     ->                          drops a stranger here
                                        <-       HMAC(both hellos)
    acknowledge   one byte              <->      one byte           same node: with segment,
                                                                    doorbell and arena

The connector proves itself first: a stranger who dials gets a hello that depends on no secret.
Nothing is parsed but the fixed-size hello, and nothing of it reaches C++. No identity follows: the
random id of the communicator stands for one list of members, which every rank found itself in.
"""

import hmac
import secrets
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint, Member

CONTROL = 0
"""Index of the control connection of a pair of ranks; data lane i has index i + 1."""

_MAGIC = b"HCCL-PY\0"
_CONNECTOR, _ACCEPTOR = 1, 2
_HELLO = struct.Struct("!8sHHIIII16s32s")
_PROOF_BYTES = 32
_ACKNOWLEDGE = b"A"

Steps = Generator[int, None, None]
"""Yields the selector event to wait for."""


class RejectedError(Exception):
    """The other side of a connection is not what it should be; says why, without secrets."""


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
class Party:
    """This rank, as all its handshakes see it.

    Attributes:
        communicator_id: random, public; keeps connections of two communicators apart.
        secret: known to members only.
        segment: what ranks of the same node are handed: memfd of the segment, eventfd of the
            doorbell, memfd of the registered memory.
        num_lanes: data lanes to each rank of another node.
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
        me, peer = self.members[self.rank].identity, self.members[rank].identity
        return self.shares_memory and me.node == peer.node

    def shares_machine(self, rank: int) -> bool:
        """Say whether this rank reaches another one by loopback, at any of its addresses."""
        me, peer = self.members[self.rank].identity, self.members[rank].identity
        return me.machine == peer.machine

    @property
    def ties_interfaces(self) -> bool:
        """Whether paths are tied to interfaces, because there are several."""
        return len(self.members[self.rank].endpoints) > 1

    def route(self, rank: int, path: int) -> tuple[Endpoint, Endpoint]:
        """Return both ends of a path, this rank's first: paths go round the interfaces."""
        mine, theirs = self.members[self.rank].endpoints, self.members[rank].endpoints
        interface = path % min(len(mine), len(theirs))
        return mine[interface], theirs[interface]

    def num_paths(self, rank: int) -> int:
        """Return how many connections each lane to a rank of another node has.

        Interface i of one rank is joined to interface i of the other; surplus ones stay unused.
        """
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


class Handshake(ABC):
    """One side of the handshake of one connection.

    Attributes:
        step: what is going on, for error messages.
        key: which connection it is, claimed until `authenticated`; None before the hello.
        authenticated: the other side knows the secret.
        descriptors: what the peer passed.
    """

    def __init__(self, party: Party) -> None:
        self.step = "hello"
        self.key: Key | None = None
        self.authenticated = False
        self.descriptors: tuple[int, ...] = ()
        self.party = party

    @abstractmethod
    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> Steps:
        """Send all bytes, and the descriptors with the first of them."""

    @abstractmethod
    def receive(self, num_bytes: int, num_descriptors: int = 0) -> Generator[int, None, bytes]:
        """Receive exactly so many bytes; adds the descriptors that came along to `descriptors`."""

    def connect(self, key: Key) -> Steps:
        """Be the side that dialled."""
        self.key = key
        hello = self._hello(_CONNECTOR, key)
        yield from self.send(hello)
        answer = yield from self.receive(_HELLO.size)
        if self._read_hello(answer, _ACCEPTOR) != key:
            raise RejectedError("it answered for another connection")
        self.step = "proof"
        yield from self.send(self.party.sign(b"connector", hello, answer))
        proof = yield from self.receive(_PROOF_BYTES)
        self._check(proof, self.party.sign(b"acceptor", hello, answer))
        yield from self._conclude()

    def accept(self, is_expected: Callable[[Key], bool]) -> Steps:
        """Be the side that was dialled; `is_expected` says whether a connection may come."""
        hello = yield from self.receive(_HELLO.size)
        key = self._read_hello(hello, _CONNECTOR)
        if not (key.rank < len(self.party.members) and is_expected(key)):
            raise RejectedError("it claims to be a connection that is not expected here")
        self.key = key
        answer = self._hello(_ACCEPTOR, key)
        yield from self.send(answer)
        self.step = "proof"
        proof = yield from self.receive(_PROOF_BYTES)
        self._check(proof, self.party.sign(b"connector", hello, answer))
        yield from self.send(self.party.sign(b"acceptor", hello, answer))
        yield from self._conclude()

    def _conclude(self) -> Steps:
        """Exchange acknowledgements and, where memory is shared, descriptors."""
        assert self.key is not None
        self.step = "acknowledge"
        passed = self.party.segment if self.party.is_local(self.key.rank) else ()
        yield from self.send(_ACKNOWLEDGE, passed)
        if (yield from self.receive(len(_ACKNOWLEDGE), len(passed))) != _ACKNOWLEDGE:
            raise RejectedError("it did not acknowledge")
        if len(self.descriptors) != len(passed):
            raise RejectedError(f"it passed {len(self.descriptors)} descriptors, not {len(passed)}")

    def _hello(self, role: int, key: Key) -> bytes:
        ranks = self.party.rank, key.rank
        here = (PROTOCOL_VERSION, role, *ranks, key.index, key.path, self.party.communicator_id)
        return _HELLO.pack(_MAGIC, *here, secrets.token_bytes(32))

    def _read_hello(self, data: bytes, role: int) -> Key:
        """Return which connection the other side means, as this side names it."""
        magic, version, its_role, *connection, communicator_id, _ = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise RejectedError("it does not speak this protocol")
        if version != PROTOCOL_VERSION:
            raise RejectedError(f"it speaks version {version}, this is {PROTOCOL_VERSION}")
        if its_role != role:
            raise RejectedError("it is on the wrong side of the connection")
        source, target, index, path = connection
        if (target, communicator_id) != (self.party.rank, self.party.communicator_id):
            raise RejectedError("it dialled for another rank or communicator")
        return Key(source, index, path)

    def _check(self, proof: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(proof, expected):
            raise RejectedError(
                "it does not know this communicator's secret (HCCL_SECRET differs?)"
            )
        self.authenticated = True
