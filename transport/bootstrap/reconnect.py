"""Brings broken connections back while the communicator works.

The engine reports what broke and uses the other paths. The control thread dials again where this
rank is the higher one of the pair, and accepts where it is the lower. The engine gets the new
connection and replays what the old one may have lost. Attempts go on for as long as the
communicator lives: the engine decides when a communicator without any path ends.
"""

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Sequence

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.connector import Connector
from hccl_py.transport.bootstrap.party import Key, Party
from hccl_py.transport.control.control_plane import hold, release
from hccl_py.transport.network.rejections import stranger_limit
from hccl_py.transport.network.sockets import OpenSockets

logger = logging.getLogger("hccl_py.transport")

_LOOK_PERIOD_S = 1.0
"""How often the engine checks the connections while no call does."""
_WITHOUT_DESCRIPTORS_S = 0.1
_SETTLE_PERIOD_S = 0.002
_SETTLE_S = 1.5
"""How long a rank that leaves waits for a path to a peer that it cannot reach: longer than
`_LOOK_PERIOD_S`, in which the peer may notice the break, and short enough to close in 2 s."""


class Reconnector(Connector):
    """Replaces broken connections of one communicator, until it is closed."""

    FIRST_RETRY_S = 0.05
    LONGEST_RETRY_S = 1.0
    # Less than the kernel's second pause between attempts to connect over a link that is down.
    ATTEMPT_S = 3.0

    def __init__(
        self,
        engine: _core.Communicator,
        party: Party,
        listeners: Sequence[socket.socket],
        opened: OpenSockets,
    ) -> None:
        """Begin; `opened` learns of every new connection, and the listeners are taken over."""
        self._plane = hold()
        super().__init__(party, listeners, stranger_limit(), self._plane.loop.selector)
        self._engine = engine
        self._opened = opened
        self._broken: set[Key] = set()
        self._logged: set[Key] = set()  # whose failed attempts are in the log since they broke
        # Peers with a lane that has no path left; replaced, never changed: `settle` reads it.
        self._unreachable: set[int] = set()
        self._closing = False
        self._look_s = 0.0
        self._rests_until_s = math.inf
        self._plane.loop.call(self._open)

    def settle(self) -> None:
        """Wait a moment for peers out of reach, and for what they have not got yet.

        Without a goodbye this rank's end is a death. Peers that ended need none.
        """
        until = time.monotonic() + _SETTLE_S
        # In this order: a break is known here a little later than to the engine.
        while self._engine.has_undelivered() or (
            self._unreachable - {peer.rank for peer in self._engine.ended_peers()}
        ):
            if time.monotonic() > until:
                return
            time.sleep(_SETTLE_PERIOD_S)

    def close(self) -> None:
        """Close what is under way and the listeners. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._plane.loop.call(self._close)
        release(self._plane)

    def close_in_child(self) -> None:
        """In a forked child, where the thread is not: close the copies of the descriptors."""
        self._closing = True
        self._close_copies()
        self._close_listeners()

    # The control thread.

    def _open(self) -> None:
        self._listen()
        self._plane.loop.watch(self._engine.repair_fd(), self._take_broken)
        self._plane.loop.add(self)

    def _close(self) -> None:
        self._plane.loop.remove(self)
        self._plane.loop.selector.unregister(self._engine.repair_fd())
        self._close_connections()
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        # What still refers to this object must not keep the engine's memory.
        del self._engine

    def next_s(self) -> float:
        """See `loop.Service`."""
        return min(self._look_s, self._rests_until_s, super().next_s())

    def turn(self) -> None:
        """See `loop.Service`."""
        if time.monotonic() >= self._rests_until_s:
            self._rests_until_s = math.inf
            self._listen()
        self.tick()
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + _LOOK_PERIOD_S
            self._take_broken()

    # Breaks that the engine reports.

    def _take_broken(self, but: Key | None = None) -> None:
        """Note what broke, and dial it again; not `but`, to which there is a new connection."""
        for key in (Key(*broken) for broken in self._engine.take_broken()):
            if not self._is_broken(key):
                logger.warning("%s broke; it will be used again when it can", self._name(key))
            self._broken.add(key)
            self._note_reachability()
            if key.rank < self._party.rank and key != but:
                self._dial(key)

    def _is_broken(self, any_of: Key) -> bool:
        path = (any_of.rank, any_of.path)
        return any((key.rank, key.path) == path for key in self._broken)

    def _note_reachability(self) -> None:
        num_broken = Counter((key.rank, key.index) for key in self._broken)
        self._unreachable = {
            rank
            for (rank, _), broken in num_broken.items()
            if broken == self._party.num_paths(rank)
        }

    # What a connector asks.

    def _is_expected(self, key: Key) -> bool:
        """Accept any connection there may be: the peer may have noticed a break first."""
        return key.index <= self._party.num_lanes and key.path < self._party.num_paths(key.rank)

    def _connected(self, key: Key, pending: PendingConnection) -> None:
        # Breaks reported so far are of the old connection: noted later, they would stay for ever.
        self._take_broken(but=key)
        connection = pending.detach()
        self._opened.add(connection)
        self._engine.replace_connection(key.rank, key.index, key.path, connection)
        self._logged.discard(key)
        if key in self._broken:
            self._broken.remove(key)
            self._note_reachability()
            if not self._is_broken(key):
                logger.warning("%s works again", self._name(key))

    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Try again, if it was this rank that dialled."""
        if key not in self._logged:
            self._logged.add(key)
            logger.info("%s: %s: %s; trying again", self._name(key), key, what)
        if key.rank < self._party.rank:
            self._retry_later(key)

    def _out_of_descriptors(self, cause: OSError) -> None:
        """Rest: the listener stays readable, and the thread would spin on it."""
        self._rests_until_s = time.monotonic() + _WITHOUT_DESCRIPTORS_S
        for listener in self._listeners:
            self._selector.unregister(listener)

    def _name(self, key: Key) -> str:
        path = self._party.path_name(key.rank, key.path)
        peer = self._party.members[key.rank]
        return f"rank {self._party.rank}: path {key.path} ({path}) to {peer}"
