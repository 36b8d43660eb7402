"""The store that a coordinator hosts, as its clients see it: made for `rendezvous.Store`."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..deadline import Deadline
from ..errors import BootstrapError


class CoordinatorStore:
    """Keys and values at the coordinator; every rank of the communicator sees the same.

    Attributes:
        hopeless: where it is set, says why to wait no longer, or "".
        hopeless_to_connect: the same, of connections with ranks that this one has met.
    """

    def __init__(
        self,
        ask: Callable[..., Any],
        prefix: str,
        timeout_s: float,
        hopeless: Callable[[], str] | None = None,
    ) -> None:
        """Ask by `ask`, and put `prefix` before every key."""
        self._ask_coordinator = ask
        self._prefix = prefix
        self._timeout_s = timeout_s
        self.hopeless = hopeless
        self.hopeless_to_connect = hopeless

    def set(self, key: str, value: bytes) -> None:
        """Set a key; returns when the coordinator has it."""
        self._ask("set", self._prefix + key, bytes(value), timeout_s=self._timeout_s)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return bytes(self._values([key], self._timeout_s)[0])

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        self._values(keys, timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are set."""
        names = [self._prefix + key for key in keys]
        return bool(self._ask("check", names, timeout_s=self._timeout_s))

    def _values(self, keys: list[str], timeout_s: float) -> list[Any]:
        return list(self._ask("get", [self._prefix + key for key in keys], timeout_s=timeout_s))

    def _ask(self, kind: str, *body: Any, timeout_s: float) -> Any:
        try:
            return self._ask_coordinator(kind, *body, deadline=Deadline(timeout_s, self.hopeless))
        except TimeoutError as error:
            raise BootstrapError(f"the coordinator's store: {error}") from error
