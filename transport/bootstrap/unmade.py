"""Lanes that cannot be made although the peer is alive: a firewall blocks only some connections.

The control connections still work then, so the engine sees no break, and calls would wait until
their deadline.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from hccl_py.transport.bootstrap.world import Key

GIVEN_UP_S = 12.0
"""How long the network may block all connections of a lane."""


class UnmadeLanes:
    """The connections that the network blocks: since when, and why."""

    def __init__(self, num_paths: Callable[[int], int]) -> None:
        """Start empty; `num_paths` returns how many connections a lane to a rank has."""
        self._num_paths = num_paths
        self._unmade: dict[Key, tuple[float, str]] = {}

    def note(self, key: Key, why: str) -> None:
        """Record an attempt that did not reach the peer's process."""
        since_s, _ = self._unmade.get(key, (time.monotonic(), ""))
        self._unmade[key] = since_s, why

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove connections, for example because an attempt reached the peer's process."""
        for key in keys:
            self._unmade.pop(key, None)

    def forget_path(self, rank: int, path: int) -> None:
        """Remove a path's connections: the engine sees that the whole path is down."""
        self.forget([key for key in self._unmade if (key.rank, key.path) == (rank, path)])

    def take_given_up(self) -> Iterator[tuple[Key, str]]:
        """Yield one connection of each lane that is blocked for too long, and why; remove it."""
        long_ago_s = time.monotonic() - GIVEN_UP_S
        for key, (since_s, why) in tuple(self._unmade.items()):
            paths = range(self._num_paths(key.rank))
            lane = [Key(key.rank, key.index, path) for path in paths]
            if key in self._unmade and all(self._since_s(one) <= long_ago_s for one in lane):
                self.forget(lane)
                yield key, f"{key} was tried for {time.monotonic() - since_s:.0f} s: {why}"

    def _since_s(self, key: Key) -> float:
        return self._unmade.get(key, (float("inf"), ""))[0]
