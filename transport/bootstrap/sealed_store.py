"""A store with authenticated values: each has an HMAC and a size limit, checked before its use.

`rendezvous.py` names the keys of the rendezvous, `shared_failure.py` those of failures.
"""

import hmac
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from hccl_py.transport.deadline import Deadline, pause
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.threads import is_of_signal_handler

_SEAL_BYTES = 32
POLL_PERIOD_S = 1.0
"""Interval at which a waiting rank checks for failures; a quick start ends before the first."""
_FIRST_PAUSE_S, _PAUSE_S = 0.001, 0.02
"""Pause between two queries of the store, at first and later; longer in a large world."""


class Store(Protocol):
    """The required interface of a store; every c10d store has it.

    A store may have more. Without `check(keys) -> bool`, `get` must have its own timeout, and
    errors name no missing ranks. `hopeless() -> str` returns the reason to stop waiting for other
    ranks, or ""; `hopeless_to_connect() -> str` does so after the rendezvous. `problem` is the
    reason why the rendezvous failed. `stays`: it can be read after rank 0 has failed to connect.
    `ended() -> set[int]` returns the ranks that are known to have ended.
    """

    def set(self, key: str, value: Any, /) -> Any:
        """Set a key to bytes."""

    def get(self, key: str, /) -> Any:
        """Wait for a key and return its bytes."""


def innermost(store: Any) -> Any:
    """Return the store below all prefixes."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store


def served_at(store: Any) -> tuple[str, int] | None:
    """Return host and port where a store of torch is served, None for other stores."""
    store = innermost(store)
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None


class SealedStore:
    """A store of one communicator.

    Stores raise errors of any type (c10d: DistStoreError, DistNetworkError, both RuntimeError),
    hence the broad excepts.

    Attributes:
        is_there: whether there is a store; a rank that is alone may have none.
        stays: see `Store`.
    """

    def __init__(self, store: Any, secret: bytes | None) -> None:
        self.is_there = store is not None
        self.stays = bool(getattr(store, "stays", False))
        self._store = store
        self._key = secret or b""
        self._check = getattr(store, "check", None)

    def set(self, key: str, content: bytes) -> None:
        """Set a key."""
        with _explained(f"the store did not set {key!r}"):
            self._store.set(key, self._seal(key, content))

    def set_first(self, key: str, content: bytes) -> bool:
        """Set a key unless it is set; a store without `compare_set` overwrites it.

        Return whether the key has this content.
        """
        compare_set = getattr(self._store, "compare_set", None)
        if compare_set is None:
            self.set(key, content)
            return True
        sealed = self._seal(key, content)
        with _explained(f"the store did not set {key!r}"):
            return bytes(compare_set(key, b"", sealed)) == sealed

    def get(self, key: str, what: str, max_bytes: int) -> bytes:
        """Return the content of a key; `what` names it in errors."""
        with _explained(f"the store did not return {key!r}"):
            sealed = bytes(self._store.get(key))
        if len(sealed) > _SEAL_BYTES + max_bytes:
            raise BootstrapError(
                f"{what} has {len(sealed)} bytes, expected at most {_SEAL_BYTES + max_bytes}; does "
                "another program use this store?"
            )
        content = sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(self._seal(key, content), sealed):
            raise BootstrapError(
                f"{what} does not verify: set HCCL_SECRET to the same value on every rank, or on "
                "none"
            )
        return content

    def wait(
        self,
        keys: list[str],
        rank: int,
        world_size: int,
        deadline: Deadline,
        otherwise: str,
        poll: Callable[[], None],
    ) -> None:
        """Wait until all keys are set, and call `poll` every second, which may raise to end it.

        The error names the missing ranks; if none is missing, it says `otherwise`.
        """
        began_s = time.monotonic()
        poll_s = began_s + POLL_PERIOD_S
        while (problem := self._problem(keys, deadline)) is not None:
            if not isinstance(problem, _NotYetError):
                raise BootstrapError(
                    f"rank {rank}: rendezvous failed {deadline}: "
                    f"{self._absent(world_size) or otherwise} (store: {_first_line(problem)})"
                ) from problem
            now_s = time.monotonic()
            # Not `wait` of torch's stores, which logs each of its timeouts.
            pause_s = min(_FIRST_PAUSE_S + (now_s - began_s) / 10, max(_PAUSE_S, world_size / 2000))
            pause(min(pause_s, deadline.remaining_s))
            if now_s >= poll_s:
                poll_s = now_s + POLL_PERIOD_S
                poll()

    def _problem(self, keys: list[str], deadline: Deadline) -> Exception | None:
        """Return the reason why a key is not set, or None if all are."""
        try:
            if self._check is None:
                for key in keys:
                    self._store.get(key)
            elif not self._check(keys):
                reason = getattr(self._store, "problem", "")
                if reason:
                    return BootstrapError(reason)
                return TimeoutError("wait timeout") if deadline.expired else _NotYetError()
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            return error
        return None

    def _absent(self, world_size: int) -> str:
        missing = []
        if self._check is not None:  # else `has` cannot answer in a bounded time
            with suppress(BootstrapError):
                missing = [str(one) for one in range(world_size) if not self.has(f"member/{one}")]
        if not missing:
            return ""
        return (
            f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} of {world_size} did not "
            f"arrive; look at their logs, and whether all {world_size} ranks were started"
        )

    def has(self, key: str) -> bool:
        """Return whether a key is set; False where the store cannot answer in a bounded time."""
        if self._check is None:
            return False
        with _explained("the store ended"):
            return bool(self._check([key]))

    def ended(self) -> Set[int]:
        """See `Store`."""
        return frozenset(getattr(self._store, "ended", frozenset)())

    def _seal(self, key: str, content: bytes) -> bytes:
        return hmac.digest(self._key, key.encode() + b"\0" + content, "sha256") + content


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Turn what a store raises into a BootstrapError."""
    try:
        yield
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        raise BootstrapError(f"{problem}: {_first_line(error)}") from error


class _NotYetError(Exception):
    """Some key is not set."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
