"""The store that a coordinator hosts, as its clients see it: made for `rendezvous.Store`."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..errors import BootstrapError


class CoordinatorStore:
    """Keys and values at the coordinator; every rank of the communicator sees the same."""

    def __init__(self, ask: Callable[..., Any], prefix: str, timeout_s: float) -> None:
        """Ask by `ask`, and put `prefix` before every key."""
        self._ask_coordinator = ask
        self._prefix = prefix
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes) -> None:
        """Set a key; returns when the coordinator has it."""
        self._ask("set", self._prefix + key, bytes(value), timeout_s=self._timeout_s)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        values = self._ask("get", [self._prefix + key], timeout_s=self._timeout_s)
        return bytes(values[0])

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        names = [self._prefix + key for key in keys]
        self._ask("get", names, timeout_s=timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are set."""
        names = [self._prefix + key for key in keys]
        return bool(self._ask("check", names, timeout_s=self._timeout_s))

    def _ask(self, kind: str, *body: Any, timeout_s: float) -> Any:
        try:
            return self._ask_coordinator(kind, *body, timeout_s=timeout_s)
        except TimeoutError as error:
            raise BootstrapError(f"the coordinator's store: {error}") from error
