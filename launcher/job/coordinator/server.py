"""The coordinator's end of the messages, see `channel.py`."""

import hmac
import logging
import socket
from collections.abc import Callable
from typing import Any

from hccl_py.launcher.job.channel import (
    COORDINATOR_ANSWER_MS,
    HEARTBEAT_MS,
    LINGER_MS,
    MAX_MESSAGE_BYTES,
    keys,
    unpack,
)
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.transport.control.sockets import ControlSockets

_DOMAIN = b"hccl-launch"
_UNKNOWN_HOST = ""

logger = logging.getLogger("hccl_py.launcher")


class CoordinatorServer:
    """The coordinator's end: one connection for each agent; a service of the loop."""

    def __init__(
        self,
        loop: JobLoop,
        secret: str,
        on_message: Callable[[bytes, str, Any, int, int], None],
        on_lost: Callable[[bytes], None],
        num_missing: Callable[[], int],
    ) -> None:
        """Open nothing yet; agents are known by their routes.

        As many as are missing may connect before the first of them speaks.
        """
        self._num_missing = num_missing
        self._sockets = ControlSockets(loop.poller)
        admitted = keys(secret, "agent").public
        self._listener = self._sockets.open_listener(
            _DOMAIN,
            keys(secret, "coordinator"),
            "hccl-launch",
            lambda key: hmac.compare_digest(key, admitted),
            MAX_MESSAGE_BYTES,
        )
        self._listener.drop_silent(HEARTBEAT_MS, COORDINATOR_ANSWER_MS)
        self._on_message, self._on_lost = on_message, on_lost

    def listen(self, bound: socket.socket) -> None:
        """Serve agents at a bound socket."""
        self._listener.listen(bound, self._num_missing())

    def send(self, route: bytes, message: bytes) -> None:
        """Send a message to an agent, if it is still there."""
        self._listener.send(route, message)

    def close(self) -> None:
        """Close; what was sent may leave first."""
        self._sockets.close_listener(_DOMAIN, LINGER_MS)
        self._sockets.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return float("inf")

    def turn(self) -> None:
        """See `loop.Service`."""
        self._sockets.receive()
        missing = (_UNKNOWN_HOST,) * self._num_missing()
        for _, route, message in self._listener.receive(missing):
            try:
                kind, body, number, num_received = unpack(message)
            except (ValueError, TypeError, LookupError) as error:
                logger.warning("a message of an agent was dropped: %s", error)
                continue
            self._on_message(route, kind, body, number, num_received)
        for route in self._listener.take_ended():
            self._on_lost(route)
