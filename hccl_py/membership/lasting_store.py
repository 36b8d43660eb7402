"""A store of torch that outlives its connections.

Torch's TCPStore makes one connection and fails for good once that is reset. Its `clone` is another
client of the same server, so each request is repeated over a new one; all requests may be repeated.
"""

import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hccl_py.transport.bootstrap.sealed_store import served_at
from hccl_py.transport.deadline import pause
from hccl_py.transport.threads import is_of_signal_handler

_QUESTIONS = {"get", "check", "compare_set"}
_LOST_S = 45.0
"""How long a connection may be lost, as between ranks."""
_PROBE_S = 3.0
_PAUSE_S = 0.02

T = TypeVar("T")


def lasting(store: Any) -> Any:
    """Return a reconnecting store, if this one permits it; else the store itself."""
    return LastingStore(store) if served_at(store) and hasattr(store, "clone") else store


class LastingStore:
    """The interface of a torch store.

    Check a key before you `get` it, and do not `wait`: if a waiting client is reset, its server may
    drop other clients' waits.
    """

    def __init__(self, store: Any) -> None:
        """Use a store that the caller still owns: rank 0 may serve it."""
        self.underlying_store = store

    def set(self, key: str, value: Any) -> None:
        """Set a key and confirm that: torch's client does not, and may lose it."""

        def set_and_hear() -> None:
            self.underlying_store.set(key, value)
            self.underlying_store.check([key])

        self._ask(set_and_hear)

    def __getattr__(self, name: str) -> Any:
        if name not in _QUESTIONS:
            return getattr(self.underlying_store, name)
        return lambda *given: self._ask(lambda: getattr(self.underlying_store, name)(*given))

    def _ask(self, ask: Callable[[], T]) -> T:
        return persistently(ask, served_at(self.underlying_store), self._connect_again)

    def _connect_again(self) -> None:
        self.underlying_store = self.underlying_store.clone()


def persistently(
    ask: Callable[[], T],
    server: tuple[str, int] | None,
    connect_again: Callable[[], None] = lambda: None,
) -> T:
    """Repeat a request until no reset interrupts it; raise if the server is gone."""
    until_s, is_lost = time.monotonic() + _LOST_S, False
    while True:
        try:
            if is_lost:
                connect_again()
                is_lost = False
            return ask()
        except RuntimeError as error:
            # Torch's exception class, which a program without torch does not load.
            is_reset = type(error).__name__ == "DistNetworkError" and time.monotonic() < until_s
            if not is_reset or server is None or not _listens(server):
                raise
            is_lost = True
            pause(_PAUSE_S)


def _listens(server: tuple[str, int]) -> bool:
    """Return whether a process listens there: torch's client would wait for one that ended."""
    try:
        socket.create_connection(server, _PROBE_S).close()
    except OSError as error:
        if is_of_signal_handler(error):
            raise
        return isinstance(error, ConnectionResetError)
    return True
