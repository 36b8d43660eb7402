"""Where the ranks of one communicator meet who know nothing but a unique id: the serving side.

A thread of one process keeps keys and values, as `rendezvous.Store` asks for. Everything travels
under CURVE; server and clients derive their keys from the id's secret, so nobody without it gets a
word in, or out. `meeting_store.py` is the other end:

    kind    body                        answer
    join    rank, world_size, who       True
    set     key, value                  True
    get     keys                        the values, once all are set
    check   keys                        whether all are set
    leave   -                           none

A rank that comes twice, or expects another number of ranks, spoils the meeting for all: it would
only end at somebody's deadline.
"""

import contextlib
import hmac
import operator
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils import z85

from hccl_py.transport.control.doorway import Doorway
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.open_sockets import OpenSockets
from hccl_py.transport.network.rejections import Refusals, logger, stranger_limit
from hccl_py.transport.process_lifecycle import Stage, register

MAX_MESSAGE_BYTES = 64 << 20
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_HANDSHAKE_MS = 10_000
_LINGER_MS = 500
_TURN_MS = 500
_JOIN_S = 2.0
_LAST_WORDS_S = 0.5
_LAST_TURN_MS = 20


def curve_keys(secret: bytes, side: str) -> tuple[bytes, bytes]:
    """Derive the public and the secret CURVE key of one side, `server` or `client`."""
    secret_key = z85.encode(hmac.digest(secret, f"hccl-py unique id {side}".encode(), "sha256"))
    return zmq.curve_public(secret_key), secret_key


class MeetingPlace:
    """Serves one meeting, until everybody who came has left again or the process ends."""

    def __init__(self, bound: socket.socket, secret: bytes, made_by: str) -> None:
        """Serve on a bound socket, which is taken over, whoever proves that it knows `secret`.

        Args:
            bound: TCP.
            secret: of the unique id.
            made_by: names this process in the error that ranks raise if it ends too early.
        """
        self._made_by = made_by
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._client_key, _ = curve_keys(secret, "client")
        self._door = self._context.socket(zmq.REP)
        self._door.bind(_ZAP_ENDPOINT)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.curve_publickey, self._router.curve_secretkey = curve_keys(secret, "server")
        self._router.zap_domain = b"hccl"
        self._router.linger = _LINGER_MS
        self._router.maxmsgsize = MAX_MESSAGE_BYTES
        self._router.handshake_ivl = _HANDSHAKE_MS
        self._doorway = Doorway(self._router, stranger_limit(), Refusals("the meeting place"))
        self._opened = OpenSockets()
        self._listen(bound)
        # The thread's own.
        self._values: dict[str, bytes] = {}
        self._waiting: dict[tuple[bytes, int], list[str]] = {}
        self._who: dict[int, tuple[bytes, str]] = {}
        self._world_size = 0
        self._left: set[bytes] = set()
        self._problem = ""
        self._stopping = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hccl-meeting", daemon=True)
        _open.add(self)
        self._thread.start()

    def _listen(self, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        bound.setblocking(False)
        bound.listen(2 * stranger_limit())
        self._opened.add(bound.fileno())
        self._doorway.add_listener(bound.fileno())
        self._router.ipv6 = ":" in host
        self._router.setsockopt(zmq.USE_FD, bound.detach())
        self._router.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")

    def wait(self, timeout_s: float) -> bool:
        """Wait until the meeting has come to its end; False if it has not."""
        return self._over.wait(timeout_s)

    def expect_no_more(self) -> None:
        """Have nobody wait for its end: it failed, and goes on only to tell who is late."""
        self._over.set()

    def close(self) -> None:
        """End the meeting; who still waits is told. Idempotent."""
        self._stopping = True
        self._thread.join(_JOIN_S)

    def close_copies(self) -> None:
        """In a forked child, where the thread is not: close what would keep the port in use."""
        self._opened.close_copies()
        self._doorway.close_copies()

    # The thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        for one in (self._door, self._router, self._doorway.monitor):
            poller.register(one, zmq.POLLIN)
        try:
            while not self._stopping and not self._all_left():
                poller.poll(_TURN_MS)
                self._turn()
            if not self._all_left():
                self._spoil(f"{self._made_by} ended before all ranks had met")
            last_words = Deadline(_LAST_WORDS_S)  # some may be about to ask
            while len(self._left) < len(self._who) and not last_words.expired:
                poller.poll(_LAST_TURN_MS)
                self._turn()
        except Exception:
            logger.exception("the meeting place of a unique id ended")
        finally:
            self._doorway.close()
            self._router.close()
            self._door.close()
            self._context.term()
            _open.discard(self)
            self._over.set()

    def _all_left(self) -> bool:
        # A meeting that was spoilt has to tell those who come late, too.
        return not self._problem and 0 < self._world_size <= len(self._left)

    def _turn(self) -> None:
        self._answer_door()
        self._doorway.expect([""] * (self._world_size - len(self._who)))
        self._doorway.look()
        with contextlib.suppress(zmq.Again):
            while True:
                route, *_, message = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                self._doorway.proved(int(message.get(zmq.SRCFD)))
                self._take(route.bytes, message.bytes)
        self._doorway.trim()

    def _answer_door(self) -> None:
        while self._door.poll(0):
            version, request, _domain, address, _identity, mechanism, *proofs = (
                self._door.recv_multipart()
            )
            key = z85.encode(proofs[0]) if mechanism == b"CURVE" and proofs else b""
            admitted = hmac.compare_digest(key, self._client_key)
            if admitted:
                self._doorway.admitted(address.decode(errors="replace"))
            status, text = (b"200", b"OK") if admitted else (b"400", b"not a member")
            self._door.send_multipart([version, request, status, text, b"", b""])

    def _take(self, route: bytes, message: bytes) -> None:
        try:
            number, kind, *body = msgpack.unpackb(message)
            serves: dict[str, Callable[..., None]] = {
                "join": self._join,
                "set": self._set,
                "get": self._get,
                "check": self._check,
                "leave": self._leave,
            }
            serves[kind](route, int(number), *body)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("the meeting place dropped a message of a member: %s", error)

    def _join(self, route: bytes, number: int, rank: int, world_size: int, who: str) -> None:
        rank, world_size = operator.index(rank), operator.index(world_size)
        self._world_size = self._world_size or world_size
        claimed, other = self._who.setdefault(rank, (route, who))
        if claimed != route:
            self._spoil(f"two processes claim rank {rank}: {other} and {who}")
        elif world_size != self._world_size:
            first = next(iter(self._who))
            self._spoil(
                f"rank {rank} ({who}) expects {world_size} ranks, rank {first} "
                f"({self._who[first][1]}) expects {self._world_size}"
            )
        self._answer(route, number, True)

    def _set(self, route: bytes, number: int, key: str, value: bytes) -> None:
        self._values[key] = value
        self._answer(route, number, True)
        for waiter, keys in tuple(self._waiting.items()):
            if key in keys and self._has(keys):
                del self._waiting[waiter]
                self._answer(*waiter, [self._values[one] for one in keys])

    def _get(self, route: bytes, number: int, keys: list[str]) -> None:
        if self._has(keys):
            self._answer(route, number, [self._values[key] for key in keys])
        elif self._problem:
            self._answer(route, number, None)
        else:
            self._waiting[route, number] = keys

    def _check(self, route: bytes, number: int, keys: list[str]) -> None:
        self._answer(route, number, self._has(keys))

    def _leave(self, route: bytes, _number: int) -> None:
        self._left.update(one for one, _ in self._who.values() if one == route)
        for waiter in [waiter for waiter in self._waiting if waiter[0] == route]:
            del self._waiting[waiter]

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _spoil(self, problem: str) -> None:
        """End it for all with one story; the first stands."""
        self._problem = self._problem or problem
        for waiter in self._waiting:
            self._answer(*waiter, None)
        self._waiting.clear()

    def _answer(self, route: bytes, number: int, value: Any) -> None:
        message = msgpack.packb([number, self._problem, value])
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or does not read
            self._router.send_multipart([route, message], zmq.NOBLOCK)


_open: set[MeetingPlace] = set()
_left_to_parent: list[MeetingPlace] = []
"""In a forked child: never destroyed, which might touch the parent's sockets."""


def close_meeting_places() -> None:
    """End all meetings of this process, at the interpreter's exit."""
    for place in tuple(_open):
        place.close()


def _forget_after_fork() -> None:
    for place in _open:
        place.close_copies()
        _left_to_parent.append(place)
    _open.clear()


register(Stage.STORE_SERVERS, at_exit=close_meeting_places, in_forked_child=_forget_after_fork)
