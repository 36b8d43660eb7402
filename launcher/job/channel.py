"""Messages between the agents of several hosts and the coordinator, over `transport/wire/`.

A process without the job's secret can neither send nor receive. Each side detects at once when the
other process dies, and after 15 s when its host does. A connection that breaks while both live is
replaced: the agent redials, and each side sends again the messages that the other lacks.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.layout import Attempt, Hello, Slot
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.progress.rank_progress import RankProgress
from hccl_py.transport.wire.client import WireClient
from hccl_py.transport.wire.frames import WireSettings

PROTOCOL = 3
_PURPOSE = b"HCCL-JOB"
_MAX_MESSAGE_BYTES = 4 << 20
# An agent gives up a silent connection early: TCP may wait 13 s before it resends data after a
# network outage, and a new connection waits a second.
_BEAT_S, _AGENT_SILENCE_S, _COORDINATOR_SILENCE_S = 3.0, 6.0, 16.0
RETURN_S, COORDINATOR_RETURN_S = 12.0, 2.0
"""How long the connection of a process that may be alive may be gone: the agent notices its end
after up to 6 s of silence, the coordinator after up to 16 s."""
# The next one has the same content, and more.
_NOT_KEPT = frozenset({"progress"})
LINGER_S = 1.0


class Session:
    """The messages of an agent and the coordinator, over one or several successive connections.

    Attributes:
        name: the same at both ends.
        num_received: the number of the last received message.
    """

    def __init__(self, name: str) -> None:
        """Begin with no message."""
        self.name, self.num_received = name, 0
        self._num_sent = 0
        self._kept: deque[tuple[int, str, Any]] = deque()

    def pack(self, kind: str, body: Any) -> bytes:
        """Return a numbered message, which is kept until the peer has it."""
        if kind in _NOT_KEPT:
            return pack(kind, body, 0, self.num_received)
        self._num_sent += 1
        self._kept.append((self._num_sent, kind, body))
        return pack(kind, body, self._num_sent, self.num_received)

    def take(self, number: int, num_received: int) -> bool:
        """Record a received message and the peer's count; return whether it is new."""
        while self._kept and self._kept[0][0] <= num_received:
            self._kept.popleft()
        is_new = number == 0 or number > self.num_received
        self.num_received = max(self.num_received, number)
        return is_new

    def again(self) -> Iterator[bytes]:
        """Return the messages that the peer may lack."""
        for number, kind, body in tuple(self._kept):
            yield pack(kind, body, number, self.num_received)


class CoordinatorLink:
    """An agent's end; a service of the loop.

    Attributes:
        wire: the connection with the coordinator.
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
        """Dial repeatedly until the coordinator listens."""
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._session = Session(os.urandom(8).hex())
        self._was_up = False
        self.wire = WireClient(loop.selector, target, wire_settings(secret), self)

    def send_hello(self, body: dict[str, Any]) -> None:
        """Send the hello, the first message of each connection, and resend lost messages."""
        session = self._session
        hello = {**body, "session": session.name, "num_received": session.num_received}
        for message in (pack("hello", hello), *session.again()):
            self.wire.send(message)

    def send(self, kind: str, body: Any) -> None:
        """Send a message to the coordinator, now or once it is connected again."""
        self.wire.send(self._session.pack(kind, body))

    def close(self) -> None:
        """Close after sent messages have left."""
        self.wire.close(LINGER_S)

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self.wire.next_s()

    def turn(self) -> None:
        """See `loop.Service`."""
        self.wire.turn()

    def on_up(self) -> None:
        """See `wire.client.ClientOwner`."""
        self._was_up = True
        self._on_up()

    def on_message(self, message: bytes) -> None:
        """See `wire.client.ClientOwner`."""
        kind, body, number, num_received = unpack(message)
        if self._session.take(number, num_received):
            self._on_message(kind, body)

    def on_down(self) -> None:
        """See `wire.client.ClientOwner`."""
        if self._was_up:
            self._was_up = False
            self._on_down()


def wire_settings(secret: str) -> WireSettings:
    """Return the settings of both ends."""
    silences_s = _AGENT_SILENCE_S, _COORDINATOR_SILENCE_S
    return WireSettings(_PURPOSE, os.fsencode(secret), _MAX_MESSAGE_BYTES, _BEAT_S, *silences_s)


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
