"""Makes data lanes when they are first needed, and brings broken connections back.

The control thread does both, so it serves a peer while this rank computes.

A lane is made when a message first waits on it, and either rank may dial. If both do, the higher
rank's connection is kept: that rank rejects the other attempt, and dials only while it has not
answered the other's proof. So a lane never gets two connections for one path.

The engine reports broken connections and uses the other paths. Both ranks redial, and only the
higher rank's connection is kept. The lower rank dials because the higher one may never have had the
lost lane, and because a refusal means that the peer has ended. The engine receives the new
connection and repeats what the old one may have lost. Attempts continue until the communicator is
closed, also after a failure, because `shrink` must know which ranks ended. The engine decides when
a communicator without a path fails. This module only reports lanes that cannot be made although the
control connections work (`unmade.py`).
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from hccl_py.transport import _core
from hccl_py.transport._core import Cause
from hccl_py.transport.bootstrap.connection import JOINED, NotNowError, PendingConnection
from hccl_py.transport.bootstrap.connector import Connector
from hccl_py.transport.bootstrap.flaps import Flaps
from hccl_py.transport.bootstrap.unmade import UnmadeLanes
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.control.control_plane import acquire, release
from hccl_py.transport.deadline import pause
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import unauthenticated_limit
from hccl_py.transport.network.sockets import OpenSockets
from hccl_py.transport.network.system_calls import is_no_descriptor
from hccl_py.transport.wire.handshake import CONNECTING, RejectedError

logger = logging.getLogger("hccl_py.transport")

_FIRST_LANE_RETRY_S = 0.002
"""Short: the peer may be about to finish its start, or to dial the same lane."""
_POLL_PERIOD_S = 1.0
"""Interval at which the engine checks the connections while no call does."""
_BRIEF_S = 2.0
"""A shorter break is no warning the first time."""
_CHECK = "a firewall? see hccl-launch --check"
_SETTLE_PERIOD_S = 0.002
_SETTLE_S = 1.5
"""How long a closing rank waits for a path to an unreachable peer: longer than `_POLL_PERIOD_S`, in
which the peer notices the break, and short enough to close within 2 s."""
_SETTLE_LANES_S = 5.0
"""The same while a lane is made or replaced, or a provider's lane has data to send: the peer is
alive, but may be busy."""


class Reconnector(Connector):
    """Makes lanes and replaces broken connections of one communicator, until it is closed."""

    FIRST_RETRY_S = 0.05
    LONGEST_RETRY_S = 1.0
    # Less than the kernel's second pause between attempts to connect over a link that is down.
    CONNECT_S = 3.0
    ATTEMPT_S = 3.0

    def __init__(
        self,
        engine: _core.Communicator,
        world: World,
        listeners: Sequence[socket.socket],
        opened: OpenSockets,
    ) -> None:
        """Start, and take over the listeners; every new connection is added to `opened`."""
        self._plane = acquire()
        remote = world.remote
        num_inbound = world.num_lanes * sum(map(world.num_paths, remote))  # one call may need all
        max_unauthenticated = num_inbound + unauthenticated_limit()
        super().__init__(world, listeners, max_unauthenticated, self._plane.loop.selector)
        self._engine = engine
        self._opened = opened
        self._wanted: set[Key] = set()
        # Connections of lanes that exist, or existed.
        self._made: set[Key] = {
            Key(rank, 1 + lane, path)
            for rank in remote
            for lane in range(world.num_lanes_at_start)
            for path in range(world.num_paths(rank))
        }
        self._broken: dict[Key, float] = {}  # since when
        self._logged: set[Key] = set()  # whose break is in the log, until their path is whole
        # Peers with a lane that has no path. Replaced, never mutated: `settle` reads it.
        self._unreachable: set[int] = set()
        self._unmade = UnmadeLanes(world.num_paths)
        # Connections that could not be dialled for lack of a descriptor.
        self._without_descriptor: set[Key] = set()
        self._flaps = Flaps()
        self._closing = False
        self._poll_s = 0.0
        self._plane.loop.call(self._open)

    def settle(self) -> None:
        """Wait a short time for unreachable peers, and for messages that are not delivered.

        A peer that receives no goodbye reports this rank as dead. Peers that ended need none.
        """
        began_s = time.monotonic()
        # In this order: the control thread learns of a break a little later than the engine.
        while (owes := self._engine.has_undelivered()) or (
            self._unreachable - {peer.rank for peer in self._engine.ended_peers()}
        ):
            of_lanes = self._wanted or (owes and (self._broken or not self._world.num_lanes))
            limit_s = _SETTLE_LANES_S if of_lanes else _SETTLE_S
            if time.monotonic() > began_s + limit_s:
                return
            pause(_SETTLE_PERIOD_S)

    def close(self) -> None:
        """Close the listeners and unfinished connections. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._plane.loop.call(self._close)
        release(self._plane)

    def close_in_child(self) -> None:
        """In a forked child, which lacks the thread: close the copies of the descriptors."""
        self._closing = True
        self._close_copies()
        self._close_listeners()

    # The control thread.

    def _open(self) -> None:
        self._listen()
        for listener in self._listeners:
            _core.give_up_in_children(listener.fileno())
        self._plane.loop.watch(self._engine.repair_fd(), self._take_news)
        self._plane.loop.add(self)

    def _close(self) -> None:
        self._plane.loop.remove(self)
        self._plane.loop.selector.unregister(self._engine.repair_fd())
        self._close_connections()
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            _core.keep_in_children(listener.fileno())
            listener.close()
        # Remaining references to this object must not keep the engine's memory.
        del self._engine

    def next_s(self) -> float:
        """See `loop.Service`."""
        return min(self._poll_s, super().next_s())

    def turn(self) -> None:
        """See `loop.Service`."""
        self.tick()
        if time.monotonic() >= self._poll_s:
            self._poll_s = time.monotonic() + _POLL_PERIOD_S
            self._take_news()
            for key, why in self._unmade.take_given_up():
                if key in self._without_descriptor:  # not the peer's fault
                    self._engine.abort(self._no_descriptor(), Cause.INTERNAL_ERROR)
                else:
                    self._engine.note_unreachable(key.rank, f"{self._route(key)}: {why}")

    def _take_news(self, but: Key | None = None) -> None:
        """Make the connections that the engine needs, except `but`, which was made."""
        self._take_broken(but)
        self._take_wanted()  # the same event announces both

    # Lanes that the engine needs.

    def _take_wanted(self) -> None:
        for key in (Key(*wanted) for wanted in self._engine.take_wanted()):
            if key not in self._made:
                self._wanted.add(key)
                self._make(key)

    def _make(self, key: Key) -> None:
        """Dial, unless the peer's own attempt may have succeeded at the peer."""
        for accepted in self._attempts(key, dialled=False):
            if accepted.authenticated:
                return
            if key.rank < self._world.rank:
                self._give_up(accepted)
        self._dial(key)

    def _attempts(self, key: Key, *, dialled: bool) -> list[PendingConnection]:
        return [one for one in self._pending if (one.key, one.dialled) == (key, dialled)]

    # Breaks that the engine reports.

    def _take_broken(self, but: Key | None) -> None:
        for key in (Key(*broken) for broken in self._engine.take_broken()):
            self._broken.setdefault(key, time.monotonic())
            self._note_reachability()
            if key.index == CONTROL:
                self._unmade.forget_path(key.rank, key.path)
            if key != but:
                self._make(key)

    def _log_break(self, key: Key, is_brief: bool = False) -> None:
        """Log a break once a redial shows that the peer did not end: it would have refused."""
        if not _any_on_path(key, self._logged):
            self._flaps.log_break(self._name(key), (key.rank, key.path), is_brief)
        self._logged.add(key)

    def _note_reachability(self) -> None:
        num_broken = Counter((key.rank, key.index) for key in self._broken)
        self._unreachable = {
            rank
            for (rank, _), broken in num_broken.items()
            if broken == self._world.num_paths(rank)
        }

    # Called by a connector.

    def _is_expected(self, key: Key) -> bool:
        """Accept every connection that may exist: the peer may notice a break first."""
        if key.index > self._world.num_lanes or key.path >= self._world.num_paths(key.rank):
            return False
        is_first = key.index != CONTROL and key not in self._made
        if key.rank < self._world.rank and (not is_first or key in self._retry_s):
            raise NotNowError("this rank dials it itself, or sees nothing wrong with it")
        return True

    def _progress(self, key: Key) -> int:
        """Return `JOINED`: a peer that lost the last message of its start may continue."""
        return JOINED

    def _complete(self, pending: PendingConnection) -> None:
        """Take over a connection, unless the peer gave it up because this busy process was slow."""
        try:
            pending.check()
        except RejectedError as rejection:
            pending.close()
            self._member_failed(pending, rejection)
        else:
            super()._complete(pending)

    def _connected(self, key: Key, pending: PendingConnection) -> None:
        if key.index != CONTROL:
            self._made.add(key)
            self._wanted.discard(key)
            self._unmade.forget([key])
        # Breaks reported so far are of the old connection. Later they would count for the new one.
        self._take_news(but=key)
        connection = pending.detach()
        self._opened.add(connection)
        self._engine.replace_connection(key.rank, key.index, key.path, connection)
        if key in self._broken:
            is_brief = time.monotonic() < self._broken[key] + _BRIEF_S
            self._log_break(key, is_brief)
            del self._broken[key]
            self._note_reachability()
            if not _any_on_path(key, self._broken):
                self._logged = {one for one in self._logged if not _any_on_path(key, {one})}
                self._flaps.log_return(self._name(key), (key.rank, key.path))

    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Retry if this rank dials the connection, or needs one that the peer dialled."""
        if key in self._broken and key not in self._logged:
            self._log_break(key)
            logger.info("%s: %s: %s; trying again", self._name(key), key, what)
        if self._attempts(key, dialled=True):
            return  # what failed was the peer's attempt
        if what.startswith(CONNECTING):
            self._note_unmade(key, f"{what}; {_CHECK}")
            self._without_descriptor.discard(key)
            if is_no_descriptor(cause):
                self._without_descriptor.add(key)
        else:
            self._unmade.forget([key])
        if key in self._retry_s:
            self._retry_later(key)
        elif key in self._wanted or key in self._broken:
            self._make(key)

    def _first_retry_s(self, key: Key) -> float:
        return _FIRST_LANE_RETRY_S if key in self._wanted else super()._first_retry_s(key)

    def _refused(self, key: Key) -> None:
        """Retry; a refused control connection is reported to the engine as the end of the peer."""
        if key.index == CONTROL:
            self._engine.note_refusal(key.rank)
        else:
            self._note_unmade(key, f"{CONNECTING}: connection refused; {_CHECK}")
        super()._refused(key)

    def _note_unmade(self, key: Key, why: str) -> None:
        """Record why a lane cannot be made; if the whole path is down, the engine sees it."""
        if key.index != CONTROL and Key(key.rank, CONTROL, key.path) not in self._broken:
            self._unmade.note(key, why)

    def _num_missing(self) -> int:
        num_paths = sum(map(self._world.num_paths, self._world.remote))
        return self._world.num_lanes * num_paths - len(self._made)

    def _route(self, key: Key) -> str:
        here, there = self._world.route(key.rank, key.path)
        return f"{here.host} -> {describe_target((there.host, there.port))}"

    def _name(self, key: Key) -> str:
        path = self._world.path_name(key.rank, key.path)
        peer = self._world.members[key.rank]
        return f"rank {self._world.rank}: path {key.path} ({path}) to {peer}"


def _any_on_path(key: Key, others: Iterable[Key]) -> bool:
    return any((one.rank, one.path) == (key.rank, key.path) for one in others)
