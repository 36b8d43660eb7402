"""The connections of this process's control plane, over `transport/wire/`.

Two processes share one connection for all their common communicators; the first sender dials. In
the handshake each end proves that it is a rank of a communicator of both. `control_plane.py` checks
the sender that a message claims against the process that sent it.
"""

import hmac
import math
import os
import secrets
import socket
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector

from hccl_py.transport.control.message import MAX_MESSAGE_BYTES, ControlAddress, ControlMembers
from hccl_py.transport.network.interfaces import Target, describe_target
from hccl_py.transport.network.rejections import host_of, unauthenticated_limit
from hccl_py.transport.wire.acceptor import Acceptor
from hccl_py.transport.wire.frames import FramedConnection
from hccl_py.transport.wire.handshake import (
    CONNECTING,
    NONCE_BYTES,
    ClosedError,
    Handshake,
    NotListeningError,
    RejectedError,
    ResetError,
    Steps,
    start_connecting,
)

_HELLO = struct.Struct(f"!8s16sII{NONCE_BYTES}s")
_MAGIC = b"HCCL-CT1"
_CONNECT_S, _HANDSHAKE_S = 2.0, 10.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 1.0  # afterwards, waiting messages are dropped
_MOST_WAITING = 64  # messages for a process that is not connected yet
_MAX_FORMER = 4096
_LINGER_S = 0.1
# A silent host is noticed within about 10 s; a new connection then replaces the old one.
_WATCH_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_USER_TIMEOUT: 10_000,
}


class FormerError(RejectedError):
    """A rank connects for a communicator that this process has left."""


class ControlHandshake(Handshake):
    """A handshake of two ranks of one communicator, valid for all that their processes share.

    Attributes:
        process: `ControlAddress.key` of the peer's process; b"" until a dialling peer has proved
            itself.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        find: Callable[[bytes, int], ControlMembers],
        wanted: tuple[ControlMembers, int] | None = None,
    ) -> None:
        """Take over a socket; `wanted` is the dialled rank, and `find` returns a local one.

        `find` raises RejectedError if there is none.
        """
        self.process = b"" if wanted is None else wanted[0].addresses[wanted[1]].key
        self._find, self._wanted = find, wanted
        connection.setblocking(False)
        super().__init__(connection, address, dialled=wanted is not None)

    def _run(self) -> Steps:
        if self._wanted is not None:
            members, peer = self._wanted
            yield from self.await_connection()
            self.watch_host(_WATCH_OPTIONS)
            hello = self._hello(members, peer)
            sign = partial(_sign, members)
            hellos = yield from self.prove_connecting(hello, self._check, sign)
        else:
            self.watch_host(_WATCH_OPTIONS)
            hellos = yield from self.prove_accepting(_HELLO.size, self._answer_to, self._sign)
            members, peer = self._read_hello(hellos[0])
        self.process = members.addresses[peer].key
        self.session = _sign(members, b"session", *hellos)

    def _hello(self, members: ControlMembers, peer: int) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _HELLO.pack(_MAGIC, members.communicator_id, members.rank, peer, nonce)

    def _read_hello(self, hello: bytes) -> tuple[ControlMembers, int]:
        """Return a hello's communicator, its local receiver rank and its sender rank."""
        magic, communicator_id, peer, rank, _ = _HELLO.unpack(hello)
        if magic != _MAGIC:
            raise RejectedError("it does not speak this protocol")
        members = self._find(communicator_id, rank)
        if peer >= len(members.addresses):
            raise RejectedError("it claims a rank that does not exist")
        return members, peer

    def _check(self, answer: bytes) -> None:
        if self._read_hello(answer) != self._wanted:
            raise RejectedError("it answered for another rank or communicator")

    def _answer_to(self, hello: bytes) -> bytes:
        return self._hello(*self._read_hello(hello))

    def _sign(self, side: bytes, hello: bytes, answer: bytes) -> bytes:
        return _sign(self._read_hello(hello)[0], side, hello, answer)


def _sign(members: ControlMembers, side: bytes, hello: bytes, answer: bytes) -> bytes:
    key = hmac.digest(members.secret, b"hccl-py control" + members.communicator_id, "sha256")
    return hmac.digest(key, side + b"\0" + hello + answer, "sha256")


class ControlSockets(Acceptor[ControlHandshake]):
    """All connections of one process. Another thread constructs it, the control thread uses it.

    Attributes:
        key: identifies this process to others.
        unix_name: Unix socket for processes of this machine.
    """

    ATTEMPT_S = _HANDSHAKE_S

    def __init__(self, selector: BaseSelector, on_message: Callable[[bytes, bytes], None]) -> None:
        """Listen for this machine's processes; `on_message` gets a sender's key and message."""
        super().__init__([], unauthenticated_limit(), selector, "the control plane")
        self._min_unauthenticated = self._max_unauthenticated
        self.key = os.urandom(16)
        self.unix_name = f"hccl-{secrets.token_hex(16)}"
        self._deliver = on_message
        self._members: dict[tuple[bytes, int], ControlMembers] = {}
        # A rank may leave while a slower rank still connects to it.
        self._former: OrderedDict[bytes, None] = OrderedDict()
        # The following are keyed by process.
        self._num_ranks: Counter[bytes] = Counter()  # over all communicators
        self._connections: dict[bytes, list[FramedConnection]] = {}
        self._waiting: dict[bytes, deque[bytes]] = {}  # messages for processes not connected yet
        self._dialled: dict[bytes, float] = {}  # next retry delay of each dialled process
        self._dial_at_s: dict[bytes, float] = {}
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(f"\0{self.unix_name}")
        self.listen(bound)

    def listen(self, bound: socket.socket) -> None:
        """Take over and serve another bound socket."""
        bound.setblocking(False)
        bound.listen(2 * self._max_unauthenticated)
        self._listeners = [*self._listeners, bound]
        self._watch_listener(bound)

    def admit(self, members: ControlMembers) -> None:
        """Admit the processes of a communicator's ranks."""
        self._members[members.communicator_id, members.rank] = members
        self._former.pop(members.communicator_id, None)
        self._num_ranks.update(address.key for address in members.addresses)
        self._max_unauthenticated = self._min_unauthenticated + len(self._num_ranks)

    def dismiss(self, members: ControlMembers) -> None:
        """Dismiss the members; a process's connection closes with its last shared rank."""
        del self._members[members.communicator_id, members.rank]
        self._former[members.communicator_id] = None
        if len(self._former) > _MAX_FORMER:
            self._former.popitem(last=False)
        for address in members.addresses:
            self._num_ranks[address.key] -= 1
            if not self._num_ranks[address.key]:
                del self._num_ranks[address.key]
                self._forget_process(address.key)

    def send(self, key: bytes, message: bytes) -> None:
        """Send to a process over its connection or a new one, unless it has left.

        Unsendable messages are dropped: a rank that waits for an answer asks again.
        """
        if key not in self._num_ranks:
            return
        if key in self._connections:
            self._connections[key][-1].send(message)
            return
        self._waiting.setdefault(key, deque(maxlen=_MOST_WAITING)).append(message)
        if key not in self._dialled:
            self._dialled[key] = _FIRST_RETRY_S
            self._dial(key)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        return min(super().next_s(), *self._dial_at_s.values(), math.inf)

    def tick(self) -> None:
        """Redial the processes that are due, and drop expired handshakes."""
        now_s = time.monotonic()
        for key in [each for each, at_s in self._dial_at_s.items() if now_s >= at_s]:
            del self._dial_at_s[key]
            self._dial(key)
        super().tick()

    def close(self) -> None:
        """Close everything after a short time for sent messages to leave."""
        for key in tuple(self._connections):
            self._forget_process(key)
        self._close_connections()
        for listener in self._listeners:
            listener.close()

    def close_copies(self) -> None:
        """In a forked child: close the copies of the sockets."""
        self._close_copies()
        for connections in self._connections.values():
            for connection in connections:
                connection.close_copy()
        for listener in self._listeners:
            listener.close()

    def _forget_process(self, key: bytes) -> None:
        until_s = time.monotonic() + _LINGER_S
        for connection in self._connections.pop(key, ()):
            connection.close(until_s)
        for known in (self._waiting, self._dialled, self._dial_at_s):
            known.pop(key, None)

    def _dial(self, key: bytes) -> None:
        members, peer = next(
            (members, rank)
            for members in self._members.values()
            for rank, address in enumerate(members.addresses)
            if address.key == key
        )
        target = _target(members.addresses[peer])
        try:
            dialled = start_connecting(target)
        except (NotListeningError, OSError):  # a rank that waits asks again
            self._retry(key)
            return
        where = describe_target(target)
        self._begin(ControlHandshake(dialled, where, self._find, (members, peer)), _CONNECT_S)

    def _retry(self, key: bytes) -> None:
        pause_s = self._dialled.pop(key, math.inf)
        if pause_s > _LONGEST_RETRY_S:
            self._waiting.pop(key, None)
        else:
            self._dialled[key] = 2 * pause_s
            self._dial_at_s[key] = time.monotonic() + pause_s

    def _allowed_s(self, pending: ControlHandshake) -> float:
        return _CONNECT_S if pending.step == CONNECTING else self.ATTEMPT_S

    def _find(self, communicator_id: bytes, rank: int) -> ControlMembers:
        members = self._members.get((communicator_id, rank))
        if members is not None:
            return members
        kind = FormerError if communicator_id in self._former else RejectedError
        raise kind("it names a communicator or rank that is not here")

    def _shake_hands(self, accepted: socket.socket, client: str) -> ControlHandshake:
        return ControlHandshake(accepted, client, self._find)

    def _complete(self, pending: ControlHandshake) -> None:
        key = pending.process
        if key not in self._num_ranks:  # it has left
            pending.close()
            return
        connection = FramedConnection(
            self._selector,
            pending,
            MAX_MESSAGE_BYTES,
            partial(self._deliver, key),
            lambda _reason: self._on_end(key),
        )
        self._connections.setdefault(key, []).append(connection)
        for known in (self._dialled, self._dial_at_s):
            known.pop(key, None)
        for message in self._waiting.pop(key, ()):
            connection.send(message)

    def _on_end(self, key: bytes) -> None:
        """Drop a connection; the next message dials again."""
        open_ones = [one for one in self._connections.pop(key, ()) if not one.is_closed]
        if open_ones:
            self._connections[key] = open_ones

    def _reject(self, pending: ControlHandshake, rejection: RejectedError) -> None:
        # A member may be slow, end, or be cut off while it connects, also after its hello.
        is_early = isinstance(rejection, ClosedError | ResetError)
        is_late = isinstance(rejection, FormerError)
        if not pending.dialled and (is_late or (is_early and self._is_of_member(pending))):
            self._give_up(pending)
        else:
            super()._reject(pending, rejection)

    def _is_of_member(self, pending: ControlHandshake) -> bool:
        """Return whether a connection comes from a member's host."""
        return pending.socket.family == socket.AF_UNIX or any(
            address.host == host_of(pending.address)
            for members in self._members.values()
            for address in members.addresses
        )

    def _member_failed(self, pending: ControlHandshake, rejection: RejectedError) -> None:
        if pending.dialled:
            self._retry(pending.process)


def _target(address: ControlAddress) -> Target:
    if address.unix_name:
        return f"\0{address.unix_name}"
    return address.host, address.port
