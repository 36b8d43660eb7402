"""Makes connections: dials, listens and authenticates, all on one selector and one thread.

A stranger is an accepted connection that has not proved that it knows the secret. A stranger has
`_STRANGER_TIMEOUT_S` for that and blocks no other connection. Where there are too many, those that
have not named this communicator's id, which no outsider knows, are dropped first: a flood does not
keep members out. A failure is an error at the start (`full_mesh.py`); later (`reconnect.py`) it is
tried again.
"""

import contextlib
import heapq
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Any

from hccl_py.transport.bootstrap.connection import (
    CONNECTING,
    NotListeningError,
    NotNowError,
    PendingConnection,
    RejectedError,
    describe_client,
    start_connecting,
)
from hccl_py.transport.bootstrap.world import Key, World
from hccl_py.transport.network.emulated import emulation
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.interfaces import Target, describe_target
from hccl_py.transport.network.rejections import Rejections
from hccl_py.transport.network.system_calls import descriptor_limit, is_no_descriptor
from hccl_py.transport.threads import is_of_signal_handler

_STRANGER_TIMEOUT_S = 10.0
_ACCEPTED_PER_TURN = 8


class Connector(ABC):
    """Dials, accepts and authenticates.

    Attributes:
        FIRST_RETRY_S: pause after a first failed attempt; doubles with each further one.
        LONGEST_RETRY_S: where it stops to double.
        CONNECT_S: how long the kernel of a member may take to answer that it is dialled.
        ATTEMPT_S: how long its handshake may take after that.
    """

    FIRST_RETRY_S: float
    LONGEST_RETRY_S: float
    CONNECT_S: float
    ATTEMPT_S: float

    def __init__(
        self,
        world: World,
        listeners: Sequence[socket.socket],
        max_strangers: int,
        selector: BaseSelector,
    ) -> None:
        """Prepare; the loop of `selector` calls what is registered there, and `tick`."""
        self._world = world
        self._listeners = listeners
        self._max_strangers = max_strangers
        self._selector = selector
        # Handshakes by deadline. Strangers are those of them that have proved nothing yet, in
        # order of arrival.
        self._pending: dict[PendingConnection, float] = {}
        self._strangers: dict[PendingConnection, None] = {}
        # The next pause of each connection that this rank dials, until it is connected.
        self._retry_s: dict[Key, float] = {}
        self._retries: list[tuple[float, Key]] = []
        self._rejections = Rejections(f"rank {world.rank}")

    @abstractmethod
    def _is_expected(self, key: Key) -> bool:
        """Say whether another rank may make this connection; NotNowError: later, or not needed."""

    @abstractmethod
    def _progress(self, key: Key) -> int:
        """Return this rank's `PendingConnection.progress` with the peer of a connection."""

    @abstractmethod
    def _connected(self, key: Key, pending: PendingConnection) -> None:
        """Take over a connection whose handshake is complete."""

    @abstractmethod
    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Raise, or retry later: an attempt of a member, or to reach one, failed."""

    @abstractmethod
    def _out_of_descriptors(self, cause: OSError) -> None:
        """Raise, or wait a little: no descriptor is left for a connection."""

    @abstractmethod
    def _num_missing(self) -> int:
        """Return how many connections this rank still lacks at the least."""

    def _no_descriptor(self) -> str:
        limit = descriptor_limit()
        return (
            f"no descriptor is left: ulimit -n is {limit}, expected {limit + self._num_missing()} "
            f"or more on rank {self._world.rank}"
        )

    def _close_connections(self) -> None:
        for watched in (*self._listeners, *(pending.socket for pending in self._pending)):
            with contextlib.suppress(KeyError, ValueError):  # it is not watched just now
                self._selector.unregister(watched)
        self._rejections.log_rest()
        self._close_copies()

    def _close_copies(self) -> None:
        """Close the connections alone: a forked child shares its parent's selector."""
        for pending in self._pending:
            pending.close()
        self._pending.clear()

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        next_retry_s = self._retries[0][0] if self._retries else math.inf
        return min(next_retry_s, *self._pending.values(), math.inf)

    def tick(self) -> None:
        """Dial again what is due, and drop what came to its time limit."""
        while self._retries and self._retries[0][0] <= time.monotonic():
            key = heapq.heappop(self._retries)[1]
            if key in self._retry_s:  # not connected meanwhile
                self._dial_now(key)
        now_s = time.monotonic()
        for pending, limit_s in tuple(self._pending.items()):
            if limit_s > now_s:
                continue
            if pending in self._strangers:
                reason = f"it did not prove itself in {_STRANGER_TIMEOUT_S:g} s"
                self._drop_stranger(pending, reason)
            else:
                allowed_s = self.CONNECT_S if pending.step == CONNECTING else self.ATTEMPT_S
                self._reject(pending, RejectedError(f"no answer in {allowed_s:.3g} s"))

    def _dial(self, key: Key) -> None:
        if key not in self._retry_s:
            self._retry_s[key] = self._first_retry_s(key)
            self._dial_now(key)

    def _first_retry_s(self, key: Key) -> float:
        return self.FIRST_RETRY_S

    def _dial_now(self, key: Key) -> None:
        target = self._target(key)
        try:
            dialled = start_connecting(target, self._source(key))
            dialled = self._through_emulation(dialled, key.rank)
        except (NotListeningError, ConnectionRefusedError):
            self._refused(key)
            return
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            why = self._no_descriptor() if is_no_descriptor(error) else error.strerror or error
            self._failed(key, f"{CONNECTING}: {why}", error)
            return
        where = describe_target(target)
        pending = PendingConnection(self._world, dialled, where, key, self._progress)
        self._begin(pending, self.CONNECT_S)

    def _through_emulation(self, dialled: socket.socket, rank: int) -> socket.socket:
        """Put the emulated network, if there is one, into a connection with another node."""
        here, there = (self._world.members[one].identity for one in (self._world.rank, rank))
        emulated = emulation()
        if emulated is None or here.node == there.node:
            return dialled
        return emulated.carry(dialled, here.node_id, there.node_id)

    def _refused(self, key: Key) -> None:
        """Retry: nobody listens there, yet or any more."""
        self._retry_later(key)

    def _retry_later(self, key: Key) -> None:
        retry_s = self._retry_s.get(key)
        if retry_s is None:  # the peer's own attempt has succeeded
            return
        self._retry_s[key] = min(2 * retry_s, self.LONGEST_RETRY_S)
        heapq.heappush(self._retries, (time.monotonic() + retry_s, key))

    def _target(self, key: Key) -> Target:
        if self._world.is_local(key.rank):
            return "\0" + self._world.members[key.rank].unix_name
        _, there = self._world.route(key.rank, key.path)
        return there.host, there.port

    def _source(self, key: Key) -> Endpoint | None:
        if self._world.is_local(key.rank):
            return None
        here, _ = self._world.route(key.rank, key.path)
        tie = self._world.ties_interfaces and not self._world.shares_machine(key.rank)
        return here if tie else Endpoint("", here.host, 0)

    def _listen(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, EVENT_READ, partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if is_of_signal_handler(error):
                    raise
                if is_no_descriptor(error):
                    self._make_room(error)
                return  # any other is an error of that connection, says accept(2)
            self._welcome(accepted, address)

    def _make_room(self, error: OSError) -> None:
        silent = self._most_suspect()
        if silent is None or silent.key is not None:
            self._out_of_descriptors(error)
        else:
            self._drop_stranger(silent, "no descriptor was left for others")

    def _welcome(self, accepted: socket.socket, address: Any) -> None:
        accepted.setblocking(False)
        client = describe_client(accepted, address)
        admits = partial(self._admits, accepted.family == socket.AF_UNIX)
        pending = PendingConnection(self._world, accepted, client, admits, self._progress)
        if len(self._strangers) >= self._max_strangers:
            suspect = self._most_suspect()
            assert suspect is not None
            self._drop_stranger(suspect, "too many others are waiting")
        self._strangers[pending] = None
        self._begin(pending, _STRANGER_TIMEOUT_S)

    def _most_suspect(self) -> PendingConnection | None:
        """Return the oldest stranger that has not named the communicator; or else the oldest."""
        unnamed = (pending for pending in self._strangers if pending.key is None)
        return next(unnamed, next(iter(self._strangers), None))

    def _admits(self, is_local: bool, key: Key) -> bool:
        return (
            key.rank != self._world.rank
            and self._world.is_local(key.rank) == is_local
            and self._is_expected(key)
        )

    def _drop_stranger(self, pending: PendingConnection, reason: str) -> None:
        self._give_up(pending)
        self._rejections.note(pending.address, reason)

    def _begin(self, pending: PendingConnection, timeout_s: float) -> None:
        self._pending[pending] = time.monotonic() + timeout_s
        self._selector.register(pending.socket, EVENT_READ, partial(self._advance, pending))
        self._advance(pending)

    def _advance(self, pending: PendingConnection) -> None:
        if pending.closed:  # by an earlier event of the same turn
            return
        was_connecting = pending.step == CONNECTING
        try:
            event = pending.advance()
        except RejectedError as rejection:
            self._reject(pending, rejection)
            return
        proved = pending.authenticated and pending in self._strangers
        if proved:
            del self._strangers[pending]
        if proved or (was_connecting and pending.step != CONNECTING):
            self._pending[pending] = time.monotonic() + self.ATTEMPT_S
        if event is not None:
            self._selector.modify(pending.socket, event, partial(self._advance, pending))
            return
        key = pending.key
        assert key is not None
        self._forget(pending)
        self._retry_s.pop(key, None)
        self._connected(key, pending)

    def _reject(self, pending: PendingConnection, rejection: RejectedError) -> None:
        if isinstance(rejection, NotNowError):
            self._give_up(pending)
            return
        if pending in self._strangers and not pending.authenticated:
            self._drop_stranger(pending, str(rejection))
            return
        self._give_up(pending)
        key = pending.key
        assert key is not None
        if isinstance(rejection, NotListeningError):
            self._refused(key)
            return
        what = f"{pending.step}: {rejection}"
        if pending.step == "proof":  # an acceptor drops strangers and says nothing
            what += " (is HCCL_SECRET the same on both?)"
        self._failed(key, what, rejection)

    def _give_up(self, pending: PendingConnection) -> None:
        self._forget(pending)
        pending.close()

    def _forget(self, pending: PendingConnection) -> None:
        del self._pending[pending]
        self._strangers.pop(pending, None)
        self._selector.unregister(pending.socket)
