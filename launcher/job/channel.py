"""Messages between the agents of several hosts and the head, under CURVE.

Keys derive from the job's secret: a process without it gets nothing in or out. Both sides notice at
once when the other one dies, and after some seconds when its host does.
"""

import hmac
import logging
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils import z85

from hccl_py.launcher.failure import Failure
from hccl_py.launcher.job.head import Hello
from hccl_py.launcher.job.layout import Attempt, Slot
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.progress.rank_progress import RankProgress
from hccl_py.transport.control.listener import KeyPair, curve_socket, receive_event
from hccl_py.transport.control.sockets import ControlSockets
from hccl_py.transport.network.interfaces import describe_target

PROTOCOL = 1
_MAX_MESSAGE_BYTES = 4 << 20
_HEARTBEAT_MS, _SILENT_MS = 1000, 15_000
_REDIAL_MS, _MAX_REDIAL_MS = 50, 1000
_LINGER_MS = 1000
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED)
_REJECTED = (
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)
_DOMAIN = b"hccl-launch"

logger = logging.getLogger("hccl_py.launcher")


class HeadServer:
    """The head's end: one connection for each agent; a service of the loop."""

    def __init__(
        self,
        loop: JobLoop,
        bound: socket.socket,
        secret: str,
        on_message: Callable[[bytes, str, Any], None],
        on_lost: Callable[[bytes], None],
    ) -> None:
        """Listen at a bound socket; agents are known by their routes."""
        self._sockets = ControlSockets(loop.poller)
        keys = _keys(secret, "head")
        admitted = _keys(secret, "agent").public
        self._listener = self._sockets.open_listener(
            _DOMAIN,
            keys,
            "hccl-launch",
            lambda key: hmac.compare_digest(key, admitted),
            _MAX_MESSAGE_BYTES,
        )
        self._on_message, self._on_lost = on_message, on_lost
        self._listener.listen(bound)

    def send(self, route: bytes, kind: str, body: Any) -> None:
        """Send a message to an agent, if it is still there."""
        self._listener.send(route, _pack(kind, body))

    def close(self) -> None:
        """Close; what was sent may leave first."""
        self._sockets.close_listener(_DOMAIN, _LINGER_MS)
        self._sockets.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return float("inf")

    def turn(self) -> None:
        """See `loop.Service`."""
        self._sockets.receive()
        for _, route, message in self._listener.receive(()):
            try:
                kind, body = _unpack(message)
            except (ValueError, TypeError, KeyError) as error:
                logger.warning("a message of an agent was dropped: %s", error)
                continue
            self._on_message(route, kind, body)
        for route in self._listener.take_ended():
            self._on_lost(route)


class HeadLink:
    """An agent's end; a service of the loop.

    Attributes:
        is_up: whether the head has answered the handshake.
        was_rejected: whether somebody there knows another secret, or is no head.
    """

    def __init__(
        self,
        loop: JobLoop,
        target: tuple[str, int],
        secret: str,
        on_up: Callable[[], None],
        on_message: Callable[[str, Any], None],
        on_down: Callable[[], None],
    ) -> None:
        """Dial, again and again until the head listens."""
        self.is_up = self.was_rejected = False
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = curve_socket(self._context, zmq.DEALER, _keys(secret, "agent"), _MAX_MESSAGE_BYTES)
        dealer.curve_serverkey = _keys(secret, "head").public
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = _REDIAL_MS, _MAX_REDIAL_MS
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = _HEARTBEAT_MS, _SILENT_MS
        dealer.heartbeat_ttl = _SILENT_MS  # the head drops an agent that is silent for as long
        dealer.linger = _LINGER_MS
        dealer.ipv6 = ":" in target[0]
        self._dealer = dealer
        self._monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(_UP | _DOWN | _REJECTED)
        for one in (dealer, self._monitor):
            loop.poller.register(one, zmq.POLLIN)
        dealer.connect(f"tcp://{describe_target(target)}")

    def send(self, kind: str, body: Any) -> None:
        """Send a message to the head."""
        if self.is_up:
            self._dealer.send(_pack(kind, body), zmq.NOBLOCK)

    def close(self) -> None:
        """Close; what was sent may leave first."""
        self._dealer.disable_monitor()
        self._monitor.close(0)
        self._dealer.close(_LINGER_MS if self.is_up else 0)
        self._context.term()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return float("inf")

    def turn(self) -> None:
        """See `loop.Service`."""
        events: list[int] = []
        messages: list[bytes] = []
        _drain(lambda: events.append(receive_event(self._monitor)[0]))
        _drain(lambda: messages.append(self._dealer.recv(zmq.NOBLOCK)))
        if any(event & _UP for event in events):
            self.is_up, self.was_rejected = True, False
            self._on_up()
        for message in messages:
            self._on_message(*_unpack(message))
        for event in events:
            self.was_rejected = self.was_rejected or bool(event & _REJECTED)
            if event & _DOWN and self.is_up:
                self.is_up = False
                self._on_down()


def _drain(take: Callable[[], None]) -> None:
    try:
        while True:
            take()
    except zmq.Again:
        pass


def _keys(secret: str, side: str) -> KeyPair:
    key = z85.encode(hmac.digest(secret.encode(), f"hccl-launch {side}".encode(), "sha256"))
    return KeyPair(zmq.curve_public(key), key)


def _pack(kind: str, body: Any) -> bytes:
    packed: bytes = msgpack.packb([kind, body], default=_plain)
    return packed


def _plain(record: Any) -> dict[str, Any]:
    return asdict(record)


def _unpack(message: bytes) -> tuple[str, Any]:
    kind, body = msgpack.unpackb(message)
    if kind == "hello":
        for name in ("num_agents", "protocol"):
            body[name] = int(body[name])
        body["index"] = None if body["index"] is None else int(body["index"])
        hello = body["hello"]
        hello["slots"] = tuple(Slot(*slot) for slot in hello["slots"])
        body["hello"] = Hello(**hello)
    elif kind == "start":
        body["slots"] = tuple(Slot(*slot) for slot in body["slots"])
        body["node_sizes"] = tuple(body["node_sizes"])
        body = Attempt(**body)
    elif kind == "ended":
        number, failures, port = body
        body = [int(number), tuple(Failure(**each) for each in failures), int(port)]
    elif kind == "answer":
        body = [int(body[0]), body[1]]
    elif kind == "failed":
        body = [int(body[0])]
    elif kind == "progress":
        body = [int(body[0]), tuple(map(RankProgress.of, body[1]))]
    elif kind == "stack":
        body = [int(body[0]), int(body[1]), str(body[2])]
    return kind, body
