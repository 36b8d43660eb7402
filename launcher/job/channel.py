"""Messages between the agents of several hosts and the head, under CURVE.

Keys derive from the job's secret: a process without it gets nothing in or out. Both sides notice at
once when the other one dies, and after some seconds when its host does.
"""

import hmac
import json
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils import z85

from hccl_py.launcher.failure import Failure
from hccl_py.launcher.job.layout import Attempt, Hello, Slot
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.progress.rank_progress import RankProgress
from hccl_py.transport.control.curve import KeyPair, curve_socket, receive_event
from hccl_py.transport.network.interfaces import describe_target

PROTOCOL = 1
MAX_MESSAGE_BYTES = 4 << 20
# Both ends send these: the head to a thousand agents. ZeroMQ's other way, a time to live in the
# heartbeats of one end, is forgotten with the next message that follows a heartbeat.
HEARTBEAT_MS, ANSWER_MS = 5000, 10_000
_REDIAL_MS, _MAX_REDIAL_MS = 50, 1000
LINGER_MS = 1000
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED)
_REJECTED = (
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)


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
        dealer = curve_socket(self._context, zmq.DEALER, keys(secret, "agent"), MAX_MESSAGE_BYTES)
        dealer.curve_serverkey = keys(secret, "head").public
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = _REDIAL_MS, _MAX_REDIAL_MS
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = HEARTBEAT_MS, ANSWER_MS
        dealer.linger = LINGER_MS
        dealer.ipv6 = ":" in target[0]
        self._dealer = dealer
        self._monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(_UP | _DOWN | _REJECTED)
        for one in (dealer, self._monitor):
            loop.poller.register(one, zmq.POLLIN)
        dealer.connect(f"tcp://{describe_target(target)}")

    def send(self, kind: str, body: Any) -> None:
        """Send a message to the head."""
        if self.is_up:
            self._dealer.send(pack(kind, body), zmq.NOBLOCK)

    def close(self) -> None:
        """Close; what was sent may leave first."""
        self._dealer.disable_monitor()
        self._monitor.close(0)
        self._dealer.close(LINGER_MS if self.is_up else 0)
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
            self._on_message(*unpack(message))
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


def keys(secret: str, side: str) -> KeyPair:
    """Return the keys of one side, "head" or "agent"."""
    key = z85.encode(hmac.digest(secret.encode(), f"hccl-launch {side}".encode(), "sha256"))
    return KeyPair(zmq.curve_public(key), key)


def pack(kind: str, body: Any) -> bytes:
    """Return a message; records become lists of their fields."""
    return json.dumps([kind, body]).encode()


def unpack(message: bytes) -> tuple[str, Any]:
    """Return kind and body of a message, its records made anew."""
    kind, body = json.loads(message)
    if kind == "hello":
        for name in ("num_agents", "protocol"):
            body[name] = int(body[name])
        body["index"] = None if body["index"] is None else int(body["index"])
        hello = Hello(*body["hello"])
        body["hello"] = hello._replace(slots=tuple(Slot(*slot) for slot in hello.slots))
    elif kind == "start":
        attempt = Attempt(*body)
        slots = tuple(Slot(*slot) for slot in attempt.slots)
        body = attempt._replace(slots=slots, node_sizes=tuple(attempt.node_sizes))
    elif kind == "ended":
        number, failures, port = body
        body = [int(number), tuple(Failure(*each) for each in failures), int(port)]
    elif kind == "answer":
        body = [int(body[0]), body[1]]
    elif kind == "failed":
        number, rank, exit_code = map(int, body)
        body = [number, rank, exit_code]
    elif kind == "progress":
        body = [int(body[0]), tuple(map(RankProgress.of, body[1]))]
    elif kind == "stack":
        body = [int(body[0]), int(body[1]), str(body[2])]
    return kind, body
