"""The store: keys and values that ranks set and wait for. Server and client, without I/O.

A coordinator hosts a store for its communicator; a process that made a unique id hosts one for
ranks that have no communicator yet (`unique_id_store.py`).

    kind     body        answer
    set      key, value  True
    get      keys        the values, once all are set; None: a key's rendezvous is over
    check    keys        whether all of them are set
    compare  key, a, b   the key's value, replaced by b if it is a; empty if not set
    cancel   -           none; the question with this number is dropped
    leave    prefix, n   True; once n clients have left it, its keys are dropped
"""

from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from hccl_py.transport.deadline import Deadline

Client = TypeVar("Client", bound=Hashable)


class StoreServer(Generic[Client]):
    """Keys and values that all clients can set and wait for."""

    def __init__(self, answer: Callable[[Client, int, Any], None]) -> None:
        """Start empty; `answer` takes a client, its question's number, and the answer."""
        self._answer = answer
        self._values: dict[str, bytes] = {}
        self._waiting: dict[tuple[Client, int], list[str]] = {}
        self._left: dict[str, set[Client]] = {}
        self._over: tuple[str, ...] = ()  # prefixes

    def set(self, client: Client, number: int, key: str, value: bytes) -> None:
        """Set a key, and answer the clients that waited for it."""
        self._answer(client, number, True)
        self._put(key, value)

    def compare(self, client: Client, number: int, key: str, expected: bytes, value: bytes) -> None:
        """Set a key if it has the expected value, and answer with its final value."""
        if self._values.get(key, b"") == expected:
            self._put(key, value)
        self._answer(client, number, self._values.get(key, b""))

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for (waiter, its_number), keys in tuple(self._waiting.items()):
            if key in keys and self._has(keys):
                self.cancel(waiter, its_number)
                self.get(waiter, its_number, keys)

    def get(self, client: Client, number: int, keys: list[str]) -> None:
        """Answer with the values, once all keys are set."""
        if self._has(keys):
            self._answer(client, number, [self._values[key] for key in keys])
        elif any(key.startswith(self._over) for key in keys):
            self._answer(client, number, None)
        else:
            self._waiting[client, number] = keys

    def check(self, client: Client, number: int, keys: list[str]) -> None:
        """Answer whether all keys are set."""
        self._answer(client, number, self._has(keys))

    def cancel(self, client: Client, number: int) -> None:
        """Drop a question whose thread no longer waits."""
        self._waiting.pop((client, number), None)

    def leave(self, client: Client, number: int, prefix: str, num_clients: int) -> None:
        """Record that a client no longer needs a prefix; after the last, drop its keys."""
        self._answer(client, number, True)
        if not any(key.startswith(prefix) for key in self._values):
            return  # a repeated question
        self._left.setdefault(prefix, set()).add(client)
        if len(self._left[prefix]) >= num_clients:
            del self._left[prefix]
            self._drop(prefix)

    def end(self, prefix: str, kept: str) -> None:
        """Drop the keys of a prefix, except one, and answer None to who still asks for others."""
        self._over += (prefix,)
        self._drop(prefix, kept)
        for (waiter, number), keys in tuple(self._waiting.items()):
            self.cancel(waiter, number)
            self.get(waiter, number, keys)

    def _drop(self, prefix: str, kept: str = "") -> None:
        for key in [key for key in self._values if key.startswith(prefix)]:
            if key != prefix + kept:
                del self._values[key]

    def reject_waiting(self, client: Client | None = None) -> None:
        """Answer None to all open questions, or to one client's."""
        for waiter, number in tuple(self._waiting):
            if client in (None, waiter):
                self.cancel(waiter, number)
                self._answer(waiter, number, None)

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class StoreClient:
    """A client that fits `bootstrap.rendezvous.Store`, which explains `hopeless`."""

    def __init__(
        self,
        ask: Callable[..., Any],
        timeout_s: float,
        prefix: str = "",
        hopeless: Callable[[], str] | None = None,
    ) -> None:
        """Put `prefix` before every key, and wait for `timeout_s` at most.

        `ask` takes `kind, *body, deadline` and returns the answer, or raises BootstrapError.
        """
        self._ask = ask
        self._prefix = prefix
        self._timeout_s = timeout_s
        self.hopeless = hopeless
        self.hopeless_to_connect = hopeless

    def set(self, key: str, value: bytes) -> None:
        """Set a key; returns when the server has it."""
        self._ask("set", self._prefix + key, bytes(value), deadline=self._deadline())

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return bytes(self._ask("get", [self._prefix + key], deadline=self._deadline())[0])

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        names = [self._prefix + key for key in keys]
        self._ask("get", names, deadline=Deadline(timeout.total_seconds(), self.hopeless))

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        names = [self._prefix + key for key in keys]
        return bool(self._ask("check", names, deadline=self._deadline()))

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s, self.hopeless)
