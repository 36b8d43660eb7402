"""The store of a unique id: where ranks meet that know nothing but the id.

The control thread of one process serves it. Server and clients derive their CURVE keys from the
secret in the id, so a process without the id gets nothing in or out. `unique_id_client.py` is the
other end; the questions are those of `store.py` and two more:

    join     rank, world_size, who    True
    leave    -                        none

A rank that comes twice, or expects another number of ranks, ends the rendezvous for all: otherwise
it would end at the first deadline.
"""

import hmac
import logging
import math
import operator
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils import z85

from hccl_py.transport.control.control_plane import hold, release
from hccl_py.transport.control.listener import KeyPair
from hccl_py.transport.control.store import StoreServer
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.process_lifecycle import Stage, register

logger = logging.getLogger("hccl_py.transport")

MAX_MESSAGE_BYTES = 64 << 20
_LINGER_MS = 500
_CLOSE_S = 2.0
_FAREWELL_S = 0.5


def curve_keys(secret: bytes, side: str) -> KeyPair:
    """Derive the CURVE keys of one side, `server` or `client`."""
    secret_key = z85.encode(hmac.digest(secret, f"hccl-py unique id {side}".encode(), "sha256"))
    return KeyPair(zmq.curve_public(secret_key), secret_key)


class UniqueIdServer:
    """Serves the ranks of one communicator until all have left, or the process ends."""

    def __init__(self, bound: socket.socket, secret: bytes, made_by: str) -> None:
        """Serve every client that proves that it knows `secret`.

        Args:
            bound: a bound TCP socket, which is taken over.
            secret: of the unique id.
            made_by: names this process in the error that ranks raise if it ends too early.
        """
        self._made_by = made_by
        self._over = threading.Event()
        self._closed = threading.Event()
        self._client_key = curve_keys(secret, "client").public
        self._domain = secrets.token_hex(8).encode()
        self._store: StoreServer[bytes] = StoreServer(self._answer)
        self._joined: dict[int, tuple[bytes, str]] = {}
        self._world_size = 0
        self._left: set[bytes] = set()
        self._problem = ""
        self._farewell: Deadline | None = None
        self._plane = hold()
        self._plane.loop.call(lambda: self._open(bound, curve_keys(secret, "server")))

    # Any thread.

    def wait(self, timeout_s: float) -> bool:
        """Wait until all ranks have left; False if they have not."""
        return self._over.wait(timeout_s)

    def expect_no_more(self) -> None:
        """End every `wait`: the rendezvous failed, and late ranks only get the reason."""
        self._over.set()

    def close(self) -> None:
        """End the rendezvous; ranks that still wait get the reason. Idempotent."""
        self._plane.loop.post(self._end)
        self._closed.wait(_CLOSE_S)

    # The control thread.

    def next_s(self) -> float:
        """See `loop.Service`."""
        return math.inf if self._farewell is None else self._farewell.end_s

    def turn(self) -> None:
        """See `loop.Service`."""
        missing = max(0, self._world_size - len(self._joined))
        for _, route, message in self._listener.receive([""] * missing):
            self._take(route, message)
        all_left = not self._problem and 0 < self._world_size <= len(self._left)
        informed = len(self._left) >= len(self._joined)
        if all_left or (self._farewell is not None and (informed or self._farewell.expired)):
            self._close()

    def _open(self, bound: socket.socket, keys: KeyPair) -> None:
        self._listener = self._plane.sockets.open_listener(
            self._domain, keys, "the store of a unique id", self._is_client, MAX_MESSAGE_BYTES
        )
        self._listener.listen(bound)
        self._plane.loop.add(self)
        _open.add(self)

    def _end(self) -> None:
        if not self._closed.is_set():
            self._fail(f"{self._made_by} ended before all ranks had met")
            self._farewell = self._farewell or Deadline(_FAREWELL_S)  # a rank may be about to ask

    def _close(self) -> None:
        _open.discard(self)
        self._plane.loop.remove(self)
        self._plane.sockets.close_listener(self._domain, _LINGER_MS)
        self._over.set()
        self._closed.set()
        release(self._plane)

    def _is_client(self, key: bytes) -> bool:
        return hmac.compare_digest(key, self._client_key)

    def _take(self, route: bytes, message: bytes) -> None:
        serves: dict[str, Callable[..., None]] = {
            "join": self._join,
            "leave": self._leave,
            "set": self._store.set,
            "get": self._get,
            "check": self._store.check,
        }
        try:
            number, kind, *body = msgpack.unpackb(message)
            serves[kind](route, int(number), *body)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("the store of a unique id dropped a message of a member: %s", error)

    def _join(self, route: bytes, number: int, rank: int, world_size: int, who: str) -> None:
        rank, world_size = operator.index(rank), operator.index(world_size)
        self._world_size = self._world_size or world_size
        claimed, other = self._joined.setdefault(rank, (route, who))
        if claimed != route:
            self._fail(f"two processes claim rank {rank}: {other} and {who}")
        elif world_size != self._world_size:
            first = next(iter(self._joined))
            self._fail(
                f"rank {rank} ({who}) expects {world_size} ranks, rank {first} "
                f"({self._joined[first][1]}) expects {self._world_size}"
            )
        self._answer(route, number, True)

    def _get(self, route: bytes, number: int, keys: list[str]) -> None:
        self._store.get(route, number, keys)
        if self._problem:
            self._store.reject_waiting(route)

    def _leave(self, route: bytes, _number: int) -> None:
        self._left.update(one for one, _ in self._joined.values() if one == route)
        self._store.reject_waiting(route)

    def _fail(self, problem: str) -> None:
        """End the rendezvous for all ranks with one reason; the first stays."""
        self._problem = self._problem or problem
        self._store.reject_waiting()

    def _answer(self, route: bytes, number: int, value: Any) -> None:
        self._listener.send(route, msgpack.packb([number, self._problem, value]))


_open: set[UniqueIdServer] = set()
_left_to_parent: list[UniqueIdServer] = []
"""In a forked child: never destroyed, which might touch the parent's sockets."""


def _close_all() -> None:
    for server in tuple(_open):
        server.close()


def _forget_after_fork() -> None:
    _left_to_parent.extend(_open)
    _open.clear()


register(Stage.STORE_SERVERS, at_exit=_close_all, in_forked_child=_forget_after_fork)
