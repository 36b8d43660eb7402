"""The server of a unique id, whose store is for ranks that know nothing but the id.

The control thread of one process serves it; `unique_id_client.py` asks it. Both prove that they
know the secret in the id, so a process without the id can neither read nor write. The requests are
those of `control/store.py` and four more, which are answered with True:

    join     rank, world_size, who, client
    visit    -         by a client that uses the store, but does not join
    fail     problem   by a rank that cannot join
    leave    client

A client has a random name, which outlives its connections. After a reset it connects, joins and
repeats its request, which has no second effect. A client that does not reconnect has left.

If two processes claim a rank, or ranks expect different numbers of ranks, the rendezvous ends for
all. Visitors of one server may have several rendezvous at a time, which the server does not check:
they know one secret, and put the name of their rendezvous before every key.
"""

import logging
import math
import operator
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.bootstrap.unique_id_client import wire_settings
from hccl_py.transport.control.control_plane import acquire, release
from hccl_py.transport.control.store import StoreServer
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.wire.server import WireServer

logger = logging.getLogger("hccl_py.transport")

_MAX_PROBLEM = 2048
_CLOSE_S = 2.0
_FAREWELL_S = 0.5
_LATE_S = 20.0  # for how long ranks that start late get the reason of a failure
_AWAY_S = 5.0  # a client without a connection for so long has left
_VISITORS_S = 1.5
_SERVER_LINGER_S = 0.5


class UniqueIdServer:
    """Serves the ranks of one communicator until all have left, or the process ends."""

    def __init__(
        self,
        bound: socket.socket,
        secret: bytes,
        made_by: str,
        *,
        is_kept: bool = False,
        timeout_s: float = math.inf,
    ) -> None:
        """Serve clients that know `secret`; errors name `made_by` if this ends too early.

        Without any client it ends after `timeout_s`, unless it `is_kept` (see `keep`).
        """
        self.secret = secret
        self._is_kept = is_kept
        self._num_kept = 0
        self._unused_until_s = time.monotonic() + timeout_s
        self._visitors: set[int] = set()
        self._made_by = made_by
        self._closed = threading.Event()
        self._store: StoreServer[int] = StoreServer(self._answer)
        self._joined: dict[int, tuple[bytes, str]] = {}  # by rank: its client
        self._world_size = 0
        self._clients: dict[int, bytes] = {}  # by route: the client that joined there
        self._away_until_s: dict[bytes, float] = {}  # then a client has left
        self._left: set[bytes] = set()
        self._problem = ""
        self._farewell: Deadline | None = None
        self._failed_until_s = 0.0  # how long a late rank gets the reason
        self._plane = acquire()
        settings, who = wire_settings(secret), "the store of a unique id"
        self.wire = WireServer(self._plane.loop.selector, settings, who, self)
        self._plane.loop.call(lambda: self._open(bound))

    # Any thread.

    def keep(self) -> int:
        """Stay open for another rendezvous; return its number, or 0 if this is closed."""
        kept = [0]

        def keep() -> None:
            if not self._closed.is_set():
                self._is_kept = True
                self._num_kept += 1
                kept.append(self._num_kept)

        self._plane.loop.call(keep)
        return kept[-1]

    def unkeep(self, number: int) -> None:
        """Close when the last visitor has left, unless a later `keep` is in force."""

        def unkeep() -> None:
            self._is_kept = self._is_kept and number != self._num_kept

        self._plane.loop.post(unkeep)

    def end(self, prefix: str, kept: str) -> None:
        """Drop the keys of a rendezvous that is over, except one; late ranks still get that."""
        self._plane.loop.post(lambda: self._store.end(prefix, kept))

    def close(self) -> None:
        """End the rendezvous; ranks that still wait get the reason. Idempotent."""
        self._plane.loop.post(self._end)
        self._closed.wait(_CLOSE_S)

    # The control thread.

    def next_s(self) -> float:
        """See `loop.Service`."""
        if self._farewell is not None:
            return min(self.wire.next_s(), self._farewell.end_s)
        if self._joined or self._visitors or self._is_kept:
            return self.wire.next_s()  # the loop calls `turn` once a second
        return min(self.wire.next_s(), self._unused_until_s)

    def turn(self) -> None:
        """See `loop.Service`."""
        self.wire.turn()
        for client, until_s in tuple(self._away_until_s.items()):
            if time.monotonic() >= until_s:
                del self._away_until_s[client]
                self._left.update(one for one, _ in self._joined.values() if one == client)
                self._expect_late_ranks()
        # A rank that leaves before all have joined has failed, and with it the rendezvous.
        is_left = not self._visitors and len(self._left) >= len(self._joined)
        if self._farewell is not None:
            is_over = is_left or self._farewell.expired
        elif self._joined:
            is_late = self.num_missing() and time.monotonic() < self._failed_until_s
            is_over = is_left and not is_late
        else:
            is_over = is_left and not self._is_kept and time.monotonic() >= self._unused_until_s
        if is_over:
            self._close()

    def _open(self, bound: socket.socket) -> None:
        self.wire.listen(bound)
        self._plane.loop.add(self)
        _open.add(self)

    def _end(self) -> None:
        if self._closed.is_set():
            return
        if self._visitors:  # their rendezvous are not this server's
            self._farewell = self._farewell or Deadline(_VISITORS_S)
            return
        self._fail(f"{self._made_by} ended before all ranks had met")
        self._farewell = self._farewell or Deadline(_FAREWELL_S)  # a rank may be about to ask

    def _close(self) -> None:
        self._plane.loop.remove(self)
        self.wire.close(_SERVER_LINGER_S)
        # Before `_closed` is set: at exit the control thread must end with this release.
        release(self._plane)
        _open.discard(self)
        self._closed.set()

    def num_missing(self) -> int:
        """See `wire.server.ServerOwner`."""
        return max(0, self._world_size - len(self._joined))

    def on_lost(self, route: int) -> None:
        """See `wire.server.ServerOwner`."""
        self._visitors.discard(route)
        client = self._clients.pop(route, None)
        if client and client not in self._left and client not in self._clients.values():
            self._away_until_s.setdefault(client, time.monotonic() + _AWAY_S)

    def on_message(self, route: int, message: bytes) -> None:
        """See `wire.server.ServerOwner`."""
        serves: dict[str, Callable[..., None]] = {
            "join": self._join,
            "visit": self._visit,
            "leave": self._leave,
            "fail": self._take_problem,
            "set": self._store.set,
            "get": self._store.get,
            "check": self._store.check,
            "compare": self._store.compare,
        }
        try:
            number, kind, *body = msgpack.unpackb(message)
            serves[kind](route, int(number), *body)
            if self._problem:
                self._store.reject_waiting(route)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("the store of a unique id dropped a message of a member: %s", error)

    def _join(
        self, route: int, number: int, rank: int, world_size: int, who: str, client: bytes
    ) -> None:
        rank, world_size = operator.index(rank), operator.index(world_size)
        self._world_size = self._world_size or world_size
        if not 0 <= rank < world_size:
            self._fail(f"rank {rank} ({who}) is not in 0..{world_size - 1} (world_size)")
            self._answer(route, number, True)
            return
        claimed, other = self._joined.setdefault(rank, (client, who))
        if claimed != client:
            self._fail(f"two processes claim rank {rank}: {other} and {who}")
        elif world_size != self._world_size:
            first = next(iter(self._joined))
            self._fail(
                f"rank {rank} ({who}) expects {world_size} ranks, rank {first} "
                f"({self._joined[first][1]}) expects {self._world_size}"
            )
        else:
            self._clients[route] = client
            self._away_until_s.pop(client, None)
            self._left.discard(client)
        self._answer(route, number, True)

    def _visit(self, route: int, number: int) -> None:
        self._visitors.add(route)
        self._answer(route, number, True)

    def _take_problem(self, route: int, number: int, problem: str) -> None:
        self._fail(str(problem)[:_MAX_PROBLEM])
        self._answer(route, number, True)

    def _leave(self, route: int, number: int, client: bytes) -> None:
        self._visitors.discard(route)
        self._away_until_s[client] = 0.0
        self._store.reject_waiting(route)
        self._answer(route, number, True)

    def _fail(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._expect_late_ranks()
        self._store.reject_waiting()

    def _expect_late_ranks(self) -> None:
        """Keep the reason for missing ranks that join after others left or failed."""
        self._failed_until_s = self._failed_until_s or time.monotonic() + _LATE_S

    def _answer(self, route: int, number: int, value: Any) -> None:
        answer = [number, self._problem, value, self.wire.rejected()]
        self.wire.send(route, msgpack.packb(answer))


_open: set[UniqueIdServer] = set()


def _close_all() -> None:
    for server in tuple(_open):
        server.close()


def _forget_after_fork() -> None:
    while _open:
        _open.pop().wire.close_copies()


register(LifecycleStage.STORE_SERVERS, at_exit=_close_all, in_forked_child=_forget_after_fork)
