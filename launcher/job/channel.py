"""Messages between the agents of several hosts and the coordinator, under CURVE.

Keys derive from the job's secret: a process without it gets nothing in or out. Both sides notice at
once when the other one dies, and after 15 s when its host does. A connection that breaks while both
live is replaced: the agent dials again, and each side sends again what the other one lacks.
"""

import hmac
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils import z85

from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.layout import Attempt, Hello, Slot
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.progress.rank_progress import RankProgress
from hccl_py.transport.control.curve import KeyPair, curve_socket, receive_event
from hccl_py.transport.network.interfaces import describe_target

PROTOCOL = 2
MAX_MESSAGE_BYTES = 4 << 20
# Both ends send these: the coordinator to a thousand agents. ZeroMQ's other way, a time to live in
# the heartbeats of one end, is forgotten with the next message that follows a heartbeat. An agent
# gives a silent connection up early: TCP may wait 13 s to try again what was sent while the network
# was away, and a new connection waits a second.
HEARTBEAT_MS, _AGENT_ANSWER_MS, COORDINATOR_ANSWER_MS = 3000, 3000, 13_000
RETURN_S, COORDINATOR_RETURN_S = 12.0, 2.0
"""How long the connection of a process that may live may be gone: its end was noticed by the agent,
after up to 6 s of silence; by the coordinator, after up to 16 s."""
_REDIAL_MS, _MAX_REDIAL_MS, _CONNECT_MS = 50, 1000, 2000
# The next one says the same, and more.
_NOT_KEPT = frozenset({"progress"})
LINGER_MS = 1000
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED)
_REJECTED = (
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)


class Session:
    """What an agent and the coordinator say to each other over one connection, or several in turn.

    Attributes:
        name: the same at both ends.
        num_received: the number of the last message that came.
    """

    def __init__(self, name: str) -> None:
        """Begin with no message."""
        self.name, self.num_received = name, 0
        self._num_sent = 0
        self._kept: deque[tuple[int, str, Any]] = deque()

    def pack(self, kind: str, body: Any) -> bytes:
        """Return a message with its number, which is kept until the other end has it."""
        if kind in _NOT_KEPT:
            return pack(kind, body, 0, self.num_received)
        self._num_sent += 1
        self._kept.append((self._num_sent, kind, body))
        return pack(kind, body, self._num_sent, self.num_received)

    def take(self, number: int, num_received: int) -> bool:
        """Note a message that came and what the other end has; return whether it is new."""
        while self._kept and self._kept[0][0] <= num_received:
            self._kept.popleft()
        is_new = number == 0 or number > self.num_received
        self.num_received = max(self.num_received, number)
        return is_new

    def again(self) -> Iterator[bytes]:
        """Return the messages that the other end may lack."""
        for number, kind, body in tuple(self._kept):
            yield pack(kind, body, number, self.num_received)


class CoordinatorLink:
    """An agent's end; a service of the loop.

    Attributes:
        is_up: whether the coordinator has answered the handshake.
        was_rejected: whether somebody there knows another secret, or is no coordinator.
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
        """Dial, again and again until the coordinator listens."""
        self.is_up = self.was_rejected = False
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._session = Session(os.urandom(8).hex())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = curve_socket(self._context, zmq.DEALER, keys(secret, "agent"), MAX_MESSAGE_BYTES)
        dealer.curve_serverkey = keys(secret, "coordinator").public
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = _REDIAL_MS, _MAX_REDIAL_MS
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = HEARTBEAT_MS, _AGENT_ANSWER_MS
        dealer.connect_timeout = _CONNECT_MS
        dealer.linger = LINGER_MS
        dealer.ipv6 = ":" in target[0]
        self._dealer = dealer
        self._monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(_UP | _DOWN | _REJECTED)
        for one in (dealer, self._monitor):
            loop.poller.register(one, zmq.POLLIN)
        dealer.connect(f"tcp://{describe_target(target)}")

    def send_hello(self, body: dict[str, Any]) -> None:
        """Say who this is, the first message of each connection, and send what was lost."""
        session = self._session
        hello = {**body, "session": session.name, "num_received": session.num_received}
        for message in (pack("hello", hello), *session.again()):
            self._dealer.send(message, zmq.NOBLOCK)

    def send(self, kind: str, body: Any) -> None:
        """Send a message to the coordinator, now or when there is a connection again."""
        message = self._session.pack(kind, body)
        if self.is_up:
            self._dealer.send(message, zmq.NOBLOCK)

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
            kind, body, number, num_received = unpack(message)
            if self._session.take(number, num_received):
                self._on_message(kind, body)
        self.was_rejected = self.was_rejected or any(event & _REJECTED for event in events)
        changes = [event for event in events if event & (_UP | _DOWN)]
        if changes and changes[-1] & _DOWN and self.is_up:
            self.is_up = False
            self._on_down()


def _drain(take: Callable[[], None]) -> None:
    try:
        while True:
            take()
    except zmq.Again:
        pass


def keys(secret: str, side: str) -> KeyPair:
    """Return the keys of one side, "coordinator" or "agent"."""
    key = z85.encode(hmac.digest(os.fsencode(secret), f"hccl-launch {side}".encode(), "sha256"))
    return KeyPair(zmq.curve_public(key), key)


def pack(kind: str, body: Any, number: int = 0, num_received: int = 0) -> bytes:
    """Return a message; records become lists of their fields. `Session` explains the numbers."""
    return json.dumps([kind, body, number, num_received]).encode()


def unpack(message: bytes) -> tuple[str, Any, int, int]:
    """Return kind, body and numbers of a message, its records made anew."""
    kind, body, number, num_received = json.loads(message)
    if kind == "hello":
        hello = Hello(*body["hello"])
        body["hello"] = hello._replace(slots=tuple(Slot(*slot) for slot in hello.slots))
    elif kind == "start":
        attempt = Attempt(*body)
        slots = tuple(Slot(*slot) for slot in attempt.slots)
        body = attempt._replace(slots=slots, node_sizes=tuple(attempt.node_sizes))
    elif kind == "ended":
        body[1] = tuple(RankFailure(*each) for each in body[1])
    elif kind == "progress":
        body[1] = tuple(RankProgress(*each) for each in body[1])
    return kind, body, int(number), int(num_received)
