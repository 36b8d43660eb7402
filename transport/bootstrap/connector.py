"""Makes connections: dials, listens and authenticates, all on one selector and one thread.

A stranger is an accepted connection that has not proved that it knows the secret. A stranger has
`STRANGER_TIMEOUT_S` for that and blocks no other connection. Where there are too many, those that
have not named this communicator's id, which no outsider knows, are dropped first: a flood does not
keep members out. The owner decides which connections are wanted and what a failure means: at the
start `full_mesh.py`, for which it is an error, later `reconnect.py`, which tries again.
"""

import contextlib
import errno
import heapq
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hccl_py.transport.bootstrap.connection import (
    PendingConnection,
    describe_client,
    start_connecting,
)
from hccl_py.transport.bootstrap.handshake import CONTROL, Handshake, Party, RejectedError
from hccl_py.transport.network.identity import Endpoint, Member
from hccl_py.transport.network.interfaces import Target, describe_target
from hccl_py.transport.network.rejections import Rejections

STRANGER_TIMEOUT_S = 10.0
"""How long an accepted connection may take to prove that it knows the secret."""

_ACCEPTED_PER_TURN = 8


@dataclass(frozen=True, order=True)
class Key:
    """A connection: rank of the peer, what it carries (`CONTROL` or 1 + lane), over which path."""

    rank: int
    index: int
    path: int

    def __str__(self) -> str:
        """Name it for messages."""
        carried = "control" if self.index == CONTROL else f"lane {self.index - 1}"
        return f"{carried} path {self.path}" if self.path else carried


class Owner(Protocol):
    """Decides what a connector cannot."""

    def is_expected(self, key: Key) -> bool:
        """Say whether a higher rank may make this connection now."""

    def connected(self, key: Key, pending: PendingConnection) -> None:
        """Take over a connection whose handshake is complete."""

    def failed(self, key: Key, what: str, cause: Exception) -> None:
        """Learn that an attempt of a member, or to reach one, failed; raise, or retry later."""

    def out_of_descriptors(self, cause: OSError) -> None:
        """Learn that no descriptor is left for a connection; raise, or wait a little."""


@dataclass(frozen=True)
class Pace:
    """Time limits of a connector.

    Attributes:
        first_retry_s: pause after a first failed attempt; doubles with each further one.
        longest_retry_s: where it stops to double.
        attempt_s: how long connecting and the handshake of a member may take.
        max_strangers: beyond it one of them is dropped.
    """

    first_retry_s: float
    longest_retry_s: float
    attempt_s: float
    max_strangers: int


class Connector:
    """Dials, accepts and authenticates."""

    def __init__(
        self,
        party: Party,
        pace: Pace,
        owner: Owner,
        selector: selectors.BaseSelector | None = None,
    ) -> None:
        """Prepare.

        Args:
            party: this rank and its peers.
            pace: how long to wait for what.
            owner: decides what is wanted.
            selector: of an event loop, which calls what is registered there, and `tick`. None:
                `run_once` does both.
        """
        self._party = party
        self._pace = pace
        self._owner = owner
        self._is_shared = selector is not None
        self._selector = selector or selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._rests_until_s = 0.0
        # Handshakes by deadline. Strangers are those of them that have proved nothing yet, in
        # order of arrival.
        self._pending: dict[PendingConnection, float] = {}
        self._strangers: dict[PendingConnection, float] = {}
        # What this rank dials or will dial again: from `dial` until it is connected or given up.
        self._under_way: set[Key] = set()
        self._dialling: dict[Key, tuple[socket.socket, float]] = {}
        self._retries: list[tuple[float, Key]] = []
        self._retry_s: dict[Key, float] = {}
        self._rejections = Rejections(f"rank {party.rank}")

    def close(self) -> None:
        """Close all connections under way. Idempotent."""
        if self._is_shared:
            dialled = [one for one, _ in self._dialling.values()]
            for watched in (
                *self._listeners,
                *(pending.socket for pending in self._pending),
                *dialled,
            ):
                with contextlib.suppress(KeyError, ValueError):  # it is not watched just now
                    self._selector.unregister(watched)
        else:
            self._selector.close()
        self._rejections.log_rest()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connections alone: the selector of a forked child is its parent's."""
        for pending in self._pending:
            pending.close()
        for dialled, _ in self._dialling.values():
            dialled.close()
        none: Any = None
        self._owner = none  # it holds this connector: neither need wait for the collector of cycles

    def listen(self, listener: socket.socket) -> None:
        """Serve a listening, non-blocking socket; it stays the caller's."""
        self._listeners.append(listener)
        self._watch(listener, partial(self._accept, listener))

    def rest(self, pause_s: float) -> None:
        """Accept nobody for a while."""
        self._rests_until_s = time.monotonic() + pause_s
        for listener in self._listeners:
            self._selector.unregister(listener)

    def run_once(self, longest_s: float) -> None:
        """Serve what is ready, after at most `longest_s` seconds."""
        until_s = min(time.monotonic() + longest_s, self.next_s())
        for ready, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
            ready.data()
        self.tick()

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        limits_s = [*self._pending.values(), *(limit_s for _, limit_s in self._dialling.values())]
        if self._retries:
            limits_s.append(self._retries[0][0])
        if self._rests_until_s:
            limits_s.append(self._rests_until_s)
        return min(limits_s, default=math.inf)

    def tick(self) -> None:
        """Dial again what is due, and drop what came to its time limit."""
        if self._rests_until_s and time.monotonic() >= self._rests_until_s:
            self._rests_until_s = 0.0
            for listener in self._listeners:
                self._watch(listener, partial(self._accept, listener))
        self._redial()
        self._drop_late()

    def _watch(self, readable: socket.socket, action: Callable[[], None]) -> None:
        self._selector.register(readable, selectors.EVENT_READ, action)

    def drop_strangers(self, reason: str) -> None:
        """Close every connection that has not proved itself."""
        for pending in tuple(self._strangers):
            self._drop_stranger(pending, reason)

    # Dialling.

    def dial(self, key: Key) -> None:
        """Start to connect to a peer, unless that is under way."""
        if key in self._under_way:
            return
        self._under_way.add(key)
        self._dial(key)

    def _dial(self, key: Key) -> None:
        peer = self._party.members[key.rank]
        try:
            dialled = start_connecting(self.target(key), self._source(key))
        except OSError as error:
            self._fail(key, f"connecting: {error.strerror or error}", error)
            return
        if dialled is None:
            self.retry_later(key)
            return
        self._dialling[key] = (dialled, time.monotonic() + self._pace.attempt_s)
        go_on = partial(self._dialled, key, peer)
        self._selector.register(dialled, selectors.EVENT_WRITE, go_on)

    def retry_later(self, key: Key) -> None:
        """Dial after a pause, which is longer each time until the connection stands."""
        self._under_way.add(key)
        retry_s = self._retry_s.get(key, self._pace.first_retry_s)
        self._retry_s[key] = min(2 * retry_s, self._pace.longest_retry_s)
        heapq.heappush(self._retries, (time.monotonic() + retry_s, key))

    def target(self, key: Key) -> Target:
        """Return what is dialled for a connection."""
        if self._party.is_local(key.rank):
            return "\0" + self._party.members[key.rank].unix_name
        _, there = self._party.route(key.rank, key.path)
        return there.host, there.port

    def _source(self, key: Key) -> Endpoint | None:
        """Say from where to dial, so that each path uses its own interface."""
        if self._party.is_local(key.rank):
            return None
        here, _ = self._party.route(key.rank, key.path)
        tie = self._party.ties_interfaces and not self._party.shares_machine(key.rank)
        return here if tie else Endpoint("", here.host, 0)

    def _dialled(self, key: Key, peer: Member) -> None:
        """Go on with a connection that was made, or not."""
        dialled, limit_s = self._dialling.pop(key)
        self._selector.unregister(dialled)
        code = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            dialled.close()
            if code == errno.ECONNREFUSED:  # it does not listen yet
                self.retry_later(key)
            else:
                self._fail(key, f"connecting: {os.strerror(code)}", OSError(code))
            return
        handshake = Handshake(self._party)
        steps = handshake.connect(peer, key.index, key.path)
        if self._party.tls is not None and not self._party.is_local(peer.rank):
            dialled = self._party.tls.wrap_dialled(dialled)
        pending = PendingConnection(dialled, handshake, steps, describe_target(self.target(key)))
        self._pending[pending] = limit_s
        self._begin(pending)

    def _redial(self) -> None:
        while self._retries and self._retries[0][0] <= time.monotonic():
            _, key = heapq.heappop(self._retries)
            self._dial(key)

    def _fail(self, key: Key, what: str, cause: Exception) -> None:
        self._under_way.discard(key)
        self._owner.failed(key, what, cause)

    # Listening.

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room(error)
                return  # any other is an error of that connection, says accept(2)
            self._welcome(accepted, address, listener.family == socket.AF_UNIX)

    def _make_room(self, error: OSError) -> None:
        """Free a descriptor for the next in the queue, from one who did not use its own."""
        silent = self._most_suspect()
        if silent is None or silent.handshake.peer is not None:
            self._owner.out_of_descriptors(error)
        else:
            self._drop_stranger(silent, "no descriptor was left for others")

    def _welcome(self, accepted: socket.socket, address: Any, is_local: bool) -> None:
        accepted.setblocking(False)
        client = describe_client(accepted, address)
        try:
            if self._party.tls is not None and not is_local:
                accepted = self._party.tls.wrap_accepted(accepted)
        except OSError:  # it is closed already
            accepted.close()
            return
        handshake = Handshake(self._party)
        pending = PendingConnection(
            accepted, handshake, handshake.accept(partial(self._admits, is_local)), client
        )
        if len(self._strangers) >= self._pace.max_strangers:
            suspect = self._most_suspect()
            assert suspect is not None
            self._drop_stranger(suspect, "too many others are waiting")
        self._pending[pending] = self._strangers[pending] = time.monotonic() + STRANGER_TIMEOUT_S
        self._begin(pending)

    def _most_suspect(self) -> PendingConnection | None:
        """Return the oldest stranger that has not named the communicator; or else the oldest."""
        unnamed = (pending for pending in self._strangers if pending.handshake.peer is None)
        return next(unnamed, next(iter(self._strangers), None))

    def _admits(self, is_local: bool, rank: int, index: int, path: int) -> bool:
        return (
            rank > self._party.rank
            and self._party.is_local(rank) == is_local
            and self._owner.is_expected(Key(rank, index, path))
        )

    def _drop_stranger(self, pending: PendingConnection, reason: str) -> None:
        self._forget(pending)
        pending.close()
        self._rejections.note(pending.address, reason)

    # Handshakes.

    def _begin(self, pending: PendingConnection) -> None:
        self._watch(pending.socket, partial(self._advance, pending))
        try:
            pending.begin()
        except RejectedError as rejection:
            self._reject(pending, rejection)
            return
        self._advance(pending)

    def _advance(self, pending: PendingConnection) -> None:
        if pending.closed:  # by an earlier event of the same turn
            return
        try:
            event = pending.advance()
        except RejectedError as rejection:
            self._reject(pending, rejection)
            return
        if pending.handshake.authenticated and self._strangers.pop(pending, None) is not None:
            self._pending[pending] = time.monotonic() + self._pace.attempt_s
        if event is None:
            self._finish(pending)
        else:
            self._selector.modify(pending.socket, event, partial(self._advance, pending))

    def _reject(self, pending: PendingConnection, rejection: RejectedError) -> None:
        if pending in self._strangers and not pending.handshake.authenticated:
            self._drop_stranger(pending, str(rejection))
            return
        what = f"{pending.handshake.step}: {rejection}"
        if pending.handshake.step == "proof":  # an acceptor drops strangers and says nothing
            what += " (is HCCL_SECRET the same on both?)"
        key = _key_of(pending)
        assert key is not None
        self._forget(pending)
        pending.close()
        self._fail(key, what, rejection)

    def _finish(self, pending: PendingConnection) -> None:
        key = _key_of(pending)
        assert key is not None
        self._forget(pending)
        self._retry_s.pop(key, None)
        self._under_way.discard(key)
        try:
            if key.index == CONTROL:
                pending.watch_peer()
        except RejectedError as rejection:
            pending.close()
            self._fail(key, str(rejection), rejection)
            return
        self._owner.connected(key, pending)

    def _forget(self, pending: PendingConnection) -> None:
        del self._pending[pending]
        self._strangers.pop(pending, None)
        self._selector.unregister(pending.socket)

    # The clock.

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for pending, limit_s in tuple(self._pending.items()):
            if limit_s > now_s:
                continue
            if pending in self._strangers:
                reason = f"it did not prove itself in {STRANGER_TIMEOUT_S:g} s"
                self._drop_stranger(pending, reason)
            else:
                self._reject(pending, RejectedError(f"no answer in {self._pace.attempt_s:g} s"))
        for key, (dialled, limit_s) in tuple(self._dialling.items()):
            if limit_s <= now_s:
                del self._dialling[key]
                self._selector.unregister(dialled)
                dialled.close()
                what = f"connecting: no answer in {self._pace.attempt_s:g} s"
                self._fail(key, what, TimeoutError(what))

    # For messages.

    def waiting_at(self) -> dict[Key, str]:
        """Return the step at which each handshake under way is."""
        steps = {_key_of(pending): pending.handshake.step for pending in self._pending}
        return {key: step for key, step in steps.items() if key is not None}

    def rejections(self) -> str:
        """Summarise the connections that were rejected; empty if none was."""
        return self._rejections.summary()


def _key_of(pending: PendingConnection) -> Key | None:
    """Return which connection a pending claims to be; None before it said so."""
    handshake = pending.handshake
    if handshake.peer is None:
        return None
    return Key(handshake.peer.rank, handshake.index, handshake.path)
