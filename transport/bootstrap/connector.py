"""Makes connections: dials, listens and authenticates, all on one selector and one thread.

`wire/acceptor.py` limits unauthenticated connections. A failed connection is an error at the start
(`full_mesh.py`), and is retried later (`reconnect.py`).
"""

import heapq
import math
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from selectors import BaseSelector

from hccl_py.transport.bootstrap.connection import NotNowError, PendingConnection
from hccl_py.transport.bootstrap.world import Key, World
from hccl_py.transport.network.emulated import emulation
from hccl_py.transport.network.interfaces import Target, describe_target
from hccl_py.transport.network.sockets import bind_to_device
from hccl_py.transport.network.system_calls import descriptor_limits, is_no_descriptor
from hccl_py.transport.threads import is_of_signal_handler
from hccl_py.transport.wire.acceptor import Acceptor
from hccl_py.transport.wire.handshake import (
    CONNECTING,
    NotListeningError,
    RejectedError,
    start_connecting,
)


class Connector(Acceptor[PendingConnection]):
    """Dials, accepts and authenticates.

    Attributes:
        FIRST_RETRY_S: pause after the first failed attempt; each further one doubles it.
        LONGEST_RETRY_S: longest pause.
        CONNECT_S: time limit for the kernel of a dialled host to answer.
    """

    FIRST_RETRY_S: float
    LONGEST_RETRY_S: float
    CONNECT_S: float

    def __init__(
        self,
        world: World,
        listeners: Sequence[socket.socket],
        max_unauthenticated: int,
        selector: BaseSelector,
    ) -> None:
        """Prepare; the loop of `selector` calls the registered callbacks, and `tick`."""
        super().__init__(listeners, max_unauthenticated, selector, f"rank {world.rank}")
        self._world = world
        # The next pause of each connection that this rank dials, until it is connected.
        self._retry_s: dict[Key, float] = {}
        self._retries: list[tuple[float, Key]] = []

    @abstractmethod
    def _is_expected(self, key: Key) -> bool:
        """Return whether a peer may make this connection; NotNowError: later, or not needed."""

    @abstractmethod
    def _progress(self, key: Key) -> int:
        """Return this rank's `PendingConnection.progress` with the peer of a connection."""

    @abstractmethod
    def _connected(self, key: Key, pending: PendingConnection) -> None:
        """Take over a connection whose handshake is complete."""

    @abstractmethod
    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Raise, or retry later: an attempt to connect with a member failed."""

    @abstractmethod
    def _num_missing(self) -> int:
        """Return how many connections this rank lacks, at least."""

    def _no_descriptor(self) -> str:
        limit = descriptor_limits()[0]
        return (
            f"no descriptor is left: ulimit -n is {limit}, expected {limit + self._num_missing()} "
            f"or more on rank {self._world.rank}"
        )

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        next_retry_s = self._retries[0][0] if self._retries else math.inf
        return min(next_retry_s, super().next_s())

    def tick(self) -> None:
        """Redial what is due, and drop expired attempts."""
        while self._retries and self._retries[0][0] <= time.monotonic():
            key = heapq.heappop(self._retries)[1]
            if key in self._retry_s:  # not connected meanwhile
                self._dial_now(key)
        super().tick()

    def _allowed_s(self, pending: PendingConnection) -> float:
        return self.CONNECT_S if pending.step == CONNECTING else self.ATTEMPT_S

    def _dial(self, key: Key) -> None:
        if key not in self._retry_s:
            self._retry_s[key] = self._first_retry_s(key)
            self._dial_now(key)

    def _first_retry_s(self, key: Key) -> float:
        return self.FIRST_RETRY_S

    def _dial_now(self, key: Key) -> None:
        target = self._target(key)
        try:
            dialled = start_connecting(target, partial(self._bind, key))
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
        """Carry a connection with another node over the emulated network, if there is one."""
        here, there = (self._world.members[one].identity for one in (self._world.rank, rank))
        emulated = emulation()
        if emulated is None or here.node == there.node:
            return dialled
        return emulated.carry(dialled, here.node_id, there.node_id)

    def _refused(self, key: Key) -> None:
        """Retry: no process listens there at present."""
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

    def _bind(self, key: Key, dialled: socket.socket) -> None:
        """Bind a dialled socket to this rank's end of its path."""
        if self._world.is_local(key.rank):
            return
        here, _ = self._world.route(key.rank, key.path)
        dialled.bind((here.host, 0))
        if self._world.ties_interfaces and not self._world.shares_machine(key.rank):
            bind_to_device(dialled, here.interface)

    def _shake_hands(self, accepted: socket.socket, client: str) -> PendingConnection:
        admits = partial(self._admits, accepted.family == socket.AF_UNIX)
        return PendingConnection(self._world, accepted, client, admits, self._progress)

    def _admits(self, is_local: bool, key: Key) -> bool:
        return (
            key.rank != self._world.rank
            and self._world.is_local(key.rank) == is_local
            and self._is_expected(key)
        )

    def _complete(self, pending: PendingConnection) -> None:
        key = pending.key
        assert key is not None
        self._retry_s.pop(key, None)
        self._connected(key, pending)

    def _reject(self, pending: PendingConnection, rejection: RejectedError) -> None:
        if isinstance(rejection, NotNowError):
            self._give_up(pending)
        else:
            super()._reject(pending, rejection)

    def _member_failed(self, pending: PendingConnection, rejection: RejectedError) -> None:
        key = pending.key
        assert key is not None
        if isinstance(rejection, NotListeningError):
            self._refused(key)
            return
        what = f"{pending.step}: {rejection}"
        if pending.step == "proof":  # an acceptor closes without a reason
            what += " (is HCCL_SECRET the same on both?)"
        self._failed(key, what, rejection)
