"""The coordinator's end of the messages, see `channel.py`."""

import logging
from collections.abc import Callable
from typing import Any

from hccl_py.launcher.job.channel import LINGER_S, unpack, wire_settings
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.transport.wire.server import WireServer

logger = logging.getLogger("hccl_py.launcher")


class CoordinatorServer:
    """The coordinator's end: one connection for each agent; a service of the loop."""

    def __init__(
        self,
        loop: JobLoop,
        secret: str,
        on_message: Callable[[int, str, Any, int, int], None],
        on_lost: Callable[[int], None],
        num_missing: Callable[[], int],
    ) -> None:
        """Create it without listening; agents are identified by routes.

        All missing agents may connect before the first one sends a message.
        """
        self._wire = WireServer(loop.selector, wire_settings(secret), "hccl-launch", self)
        self._on_message = on_message
        self.on_lost, self.num_missing = on_lost, num_missing
        self.listen, self.send = self._wire.listen, self._wire.send
        self.next_s, self.turn = self._wire.next_s, self._wire.turn

    def close(self) -> None:
        """Close after sent messages have left."""
        self._wire.close(LINGER_S)

    def on_message(self, route: int, message: bytes) -> None:
        """See `wire.server.ServerOwner`."""
        try:
            kind, body, number, num_received = unpack(message)
        except (ValueError, TypeError, LookupError) as error:
            logger.warning("a message of an agent was dropped: %s", error)
            return
        self._on_message(route, kind, body, number, num_received)
