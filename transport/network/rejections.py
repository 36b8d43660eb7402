"""The log of rejected connections: one line for each address and reason, never a flood.

Lines are few and memory is bounded, however often a client dials; the rest is counted.
"""

import logging
import resource
import time
from collections import Counter, deque

from hccl_py.transport.network.system_calls import descriptor_limits

logger = logging.getLogger("hccl_py.transport")

_MOST_CONNECTIONS = 64
_FEWEST_CONNECTIONS = 8
_DESCRIPTORS_PER_CONNECTION = 16
_LINES_PER_PERIOD = 16
_PERIOD_S = 60.0
_MAX_REMEMBERED = 256
_OTHERS = "other reasons"
_MAX_REASONS = 32


def unauthenticated_limit() -> int:
    """Return the limit of unauthenticated connections, which leaves descriptors to others."""
    limit = descriptor_limits()[0]
    if limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, limit // _DESCRIPTORS_PER_CONNECTION))


class Rejections:
    """The rejected connections of one listener. For one thread at a time."""

    def __init__(self, who: str) -> None:
        """Start with none; `who` names this side in the log."""
        self._who = who
        self._logged: deque[tuple[str, str]] = deque(maxlen=_MAX_REMEMBERED)
        self._reasons: Counter[str] = Counter()
        self._num_unlogged = 0
        self._last_unlogged = ""
        self._num_lines = 0
        self._period_ends_s = 0.0

    def note(self, address: str, reason: str) -> None:
        """Count a rejected connection, and log it if it is new and there is room."""
        known = reason in self._reasons or len(self._reasons) < _MAX_REASONS
        self._reasons[reason if known else _OTHERS] += 1
        if time.monotonic() >= self._period_ends_s:
            self.log_rest()
            self._num_lines = 0
            self._period_ends_s = time.monotonic() + _PERIOD_S
        key = (host_of(address), reason)
        if key in self._logged or self._num_lines == _LINES_PER_PERIOD:
            self._num_unlogged += 1
            self._last_unlogged = f"{address}: {reason}"
            return
        self._num_lines += 1
        self._logged.append(key)
        logger.warning("%s rejected a connection from %s: %s", self._who, address, reason)

    def log_rest(self) -> None:
        """Log the number of rejections that are not in the log yet."""
        if self._num_unlogged:
            what = "%s rejected %d more connections, the last from %s"
            logger.warning(what, self._who, self._num_unlogged, self._last_unlogged)
            self._num_unlogged = 0

    def summary(self) -> str:
        """Return how many were rejected and why, for an error message; empty if none was."""
        if not self._reasons:
            return ""
        reasons = [f"{count} ({reason})" for reason, count in self._reasons.most_common(4)]
        return f"; rejected connections: {', '.join(reasons)}"


def host_of(address: str) -> str:
    """Return an address without its port."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() else address
