"""A store whose values nobody forges: each bears an HMAC, is bounded, and is read only if it fits.

`rendezvous.py` says what ranks leave there to meet, `shared_failure.py` what while they connect.
"""

import hmac
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError

_SEAL_BYTES = 32
LOOK_PERIOD_S = 1.0
"""How often a rank that waits looks for failures; no sooner, so that a quick start asks nothing."""
# c10d reads a timeout of zero milliseconds as "for ever".
_SHORTEST_WAIT_S = 0.01


class Store(Protocol):
    """What a store must offer; every c10d store does.

    `wait(keys, timedelta)` and `check(keys) -> bool` are used where they exist. A store without
    `wait` must bound `get` itself, and missing ranks can then not be named. `hopeless() -> str`,
    where it exists, says why to give up waiting for the other ranks, or "";
    `hopeless_to_connect() -> str` the same once all have met.
    """

    def set(self, key: str, value: Any, /) -> Any:
        """Set a key to bytes."""

    def get(self, key: str, /) -> Any:
        """Wait for a key and return its bytes."""


class SealedStore:
    """A store of one communicator.

    Stores raise what they like (c10d: DistStoreError, DistNetworkError, both RuntimeError), hence
    the broad excepts.

    Attributes:
        is_there: there is a store; a rank that is alone may have none.
    """

    def __init__(self, store: Any, secret: bytes | None) -> None:
        self.is_there = store is not None
        self._store = store
        self._key = secret or b""
        self._check = getattr(store, "check", None)
        self._wait = getattr(store, "wait", None)

    def set(self, key: str, content: bytes) -> None:
        """Set a key."""
        try:
            self._store.set(key, self._seal(key, content))
        except Exception as error:
            raise BootstrapError(f"the store did not set {key!r}: {error}") from error

    def set_first(self, key: str, content: bytes) -> bool:
        """Set a key unless it is set, where the store can do that at once; else set it.

        Return whether this content is set.
        """
        compare_set = getattr(self._store, "compare_set", None)
        if compare_set is None:
            self.set(key, content)
            return True
        sealed = self._seal(key, content)
        try:
            return bytes(compare_set(key, b"", sealed)) == sealed
        except Exception as error:
            raise BootstrapError(f"the store did not set {key!r}: {error}") from error

    def get(self, key: str, what: str, max_bytes: int) -> bytes:
        """Return the content of a key; `what` names it in errors."""
        try:
            sealed = bytes(self._store.get(key))
        except Exception as error:
            raise BootstrapError(f"the store did not hand out {key!r}: {error}") from error
        if len(sealed) > _SEAL_BYTES + max_bytes:
            raise BootstrapError(
                f"{what} has {len(sealed)} bytes, > {_SEAL_BYTES + max_bytes}: not ours"
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
        look: Callable[[], None],
    ) -> None:
        """Wait until all keys are set; the error names the ranks without a card, or `otherwise`.

        Now and then it calls `look`, which may raise to end the wait.
        """
        while not self._wait_a_turn(keys, rank, world_size, deadline, otherwise):
            look()

    def _wait_a_turn(
        self, keys: list[str], rank: int, world_size: int, deadline: Deadline, otherwise: str
    ) -> bool:
        """Wait until all keys are set, or for a turn; return whether they are."""
        began_s = time.monotonic()
        turn_s = min(max(deadline.remaining_s, _SHORTEST_WAIT_S), LOOK_PERIOD_S)
        try:
            if self._wait is not None:
                self._wait(keys, timedelta(seconds=turn_s))
            else:
                for key in keys:
                    self._store.get(key)
        except Exception as error:
            # What comes sooner is no timeout: the store failed, or has a reason to give up.
            took_a_turn = self._wait is not None and time.monotonic() - began_s >= turn_s
            if took_a_turn and not deadline.expired:
                return False
            missing = [str(one) for one in range(world_size) if not self._has(f"member/{one}")]
            reason = otherwise
            if missing:
                reason = (
                    f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} of {world_size} did not "
                    f"arrive; look at their logs, and whether all {world_size} ranks were started"
                )
            raise BootstrapError(
                f"rank {rank}: rendezvous failed {deadline}: {reason} (store: {_first_line(error)})"
            ) from error
        return True

    def has(self, key: str) -> bool:
        """Say whether a key is set; False where the store cannot answer in a bounded time."""
        if self._check is None:
            return False
        try:
            return bool(self._check([key]))
        except Exception as error:
            raise BootstrapError(f"the store ended: {_first_line(error)}") from error

    def _seal(self, key: str, content: bytes) -> bytes:
        return hmac.digest(self._key, key.encode() + b"\0" + content, "sha256") + content

    def _has(self, key: str) -> bool:
        """Say whether a key is set; True where the store cannot answer in a bounded time."""
        try:
            return bool(self._check([key])) if self._check is not None else True
        except Exception:
            return True


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
