"""Makes connections: dials, listens and authenticates, all on one selector and one thread.

A silent or hostile client blocks nobody: strangers, as accepted connections are called until they
prove that they know the secret, have `STRANGER_TIMEOUT_S` for that, and there are never many. Where
too many come, those go first that have not even named this communicator's id, which no outsider
knows: so a flood does not wash members away. Which connections are wanted, and what a failure
means, its owner decides (`Owner`): at the start `wiring.py`, for which it is an error, later
`repair.py`, which tries again.
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

from hccl_py.transport.bootstrap.connection import Line, describe_client, start_connecting
from hccl_py.transport.bootstrap.handshake import CONTROL, Handshake, Party, RefusedError
from hccl_py.transport.network.identity import Endpoint, Member
from hccl_py.transport.network.interfaces import Target, describe_target
from hccl_py.transport.network.rejections import Refusals

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

    def connected(self, key: Key, line: Line) -> None:
        """Take over a connection whose handshake is complete."""

    def failed(self, key: Key, what: str, cause: Exception) -> None:
        """Hear that an attempt of a member, or to reach one, failed; raise, or retry later."""

    def out_of_descriptors(self, cause: OSError) -> None:
        """Hear that a connection cannot be accepted; raise, or wait a little."""


@dataclass(frozen=True)
class Pace:
    """How patient a connector is.

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
        self._lines: dict[Line, float] = {}
        self._strangers: dict[Line, float] = {}
        # What this rank dials or will dial again: from `dial` until it is connected or given up.
        self._under_way: set[Key] = set()
        self._dialling: dict[Key, tuple[socket.socket, float]] = {}
        self._retries: list[tuple[float, Key]] = []
        self._retry_s: dict[Key, float] = {}
        self._refusals = Refusals(f"rank {party.rank}")

    def close(self) -> None:
        """Close all connections under way. Idempotent."""
        if self._is_shared:
            dialled = [one for one, _ in self._dialling.values()]
            for watched in (*self._listeners, *(line.socket for line in self._lines), *dialled):
                with contextlib.suppress(KeyError, ValueError):  # it is not watched just now
                    self._selector.unregister(watched)
        else:
            self._selector.close()
        self._refusals.tell_rest()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connections alone: the selector of a forked child is its parent's."""
        for line in self._lines:
            line.close()
        for dialled, _ in self._dialling.values():
            dialled.close()
        gone: Any = None
        self._owner = gone  # it holds this connector: neither need wait for the collector of cycles

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
        limits_s = [*self._lines.values(), *(limit_s for _, limit_s in self._dialling.values())]
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
        for line in tuple(self._strangers):
            self._drop_stranger(line, reason)

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
        line = Line(dialled, handshake, steps, describe_target(self.target(key)))
        self._lines[line] = limit_s
        self._begin(line)

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
        except OSError:  # it is gone already
            accepted.close()
            return
        handshake = Handshake(self._party)
        line = Line(accepted, handshake, handshake.accept(partial(self._admits, is_local)), client)
        if len(self._strangers) >= self._pace.max_strangers:
            suspect = self._most_suspect()
            assert suspect is not None
            self._drop_stranger(suspect, "too many others are waiting")
        self._lines[line] = self._strangers[line] = time.monotonic() + STRANGER_TIMEOUT_S
        self._begin(line)

    def _most_suspect(self) -> Line | None:
        """Return the oldest stranger that has not named the communicator; or else the oldest."""
        unnamed = (line for line in self._strangers if line.handshake.peer is None)
        return next(unnamed, next(iter(self._strangers), None))

    def _admits(self, is_local: bool, rank: int, index: int, path: int) -> bool:
        return (
            rank > self._party.rank
            and self._party.is_local(rank) == is_local
            and self._owner.is_expected(Key(rank, index, path))
        )

    def _drop_stranger(self, line: Line, reason: str) -> None:
        self._forget(line)
        line.close()
        self._refusals.note(line.address, reason)

    # Handshakes.

    def _begin(self, line: Line) -> None:
        self._watch(line.socket, partial(self._advance, line))
        try:
            line.begin()
        except RefusedError as refusal:
            self._refuse(line, refusal)
            return
        self._advance(line)

    def _advance(self, line: Line) -> None:
        if line.closed:  # by an earlier event of the same turn
            return
        try:
            event = line.advance()
        except RefusedError as refusal:
            self._refuse(line, refusal)
            return
        if line.handshake.authenticated and self._strangers.pop(line, None) is not None:
            self._lines[line] = time.monotonic() + self._pace.attempt_s
        if event is None:
            self._finish(line)
        else:
            self._selector.modify(line.socket, event, partial(self._advance, line))

    def _refuse(self, line: Line, refusal: RefusedError) -> None:
        if line in self._strangers and not line.handshake.authenticated:
            self._drop_stranger(line, str(refusal))
            return
        what = f"{line.handshake.step}: {refusal}"
        if line.handshake.step == "proof":  # an acceptor drops strangers without a word
            what += " (is HCCL_SECRET the same on both?)"
        key = _key_of(line)
        assert key is not None
        self._forget(line)
        line.close()
        self._fail(key, what, refusal)

    def _finish(self, line: Line) -> None:
        key = _key_of(line)
        assert key is not None
        self._forget(line)
        self._retry_s.pop(key, None)
        self._under_way.discard(key)
        try:
            if key.index == CONTROL:
                line.watch_peer()
        except RefusedError as refusal:
            line.close()
            self._fail(key, str(refusal), refusal)
            return
        self._owner.connected(key, line)

    def _forget(self, line: Line) -> None:
        del self._lines[line]
        self._strangers.pop(line, None)
        self._selector.unregister(line.socket)

    # The clock.

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for line, limit_s in tuple(self._lines.items()):
            if limit_s > now_s:
                continue
            if line in self._strangers:
                reason = f"it did not prove itself in {STRANGER_TIMEOUT_S:g} s"
                self._drop_stranger(line, reason)
            else:
                self._refuse(line, RefusedError(f"no answer in {self._pace.attempt_s:g} s"))
        for key, (dialled, limit_s) in tuple(self._dialling.items()):
            if limit_s <= now_s:
                del self._dialling[key]
                self._selector.unregister(dialled)
                dialled.close()
                what = f"connecting: no answer in {self._pace.attempt_s:g} s"
                self._fail(key, what, TimeoutError(what))

    # What is said about it.

    def waiting_at(self) -> dict[Key, str]:
        """Return the step at which each handshake under way is."""
        steps = {_key_of(line): line.handshake.step for line in self._lines}
        return {key: step for key, step in steps.items() if key is not None}

    def refusals(self) -> str:
        """Summarise the connections that were refused; empty if none was."""
        return self._refusals.summary()


def _key_of(line: Line) -> Key | None:
    """Return which connection a line claims to be; None before it said so."""
    handshake = line.handshake
    if handshake.peer is None:
        return None
    return Key(handshake.peer.rank, handshake.index, handshake.path)
