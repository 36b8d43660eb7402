"""Lanes that cannot be made although the peer lives: a firewall lets only some connections through.

A firewall drops or refuses what is dialled later, while the control connections stand. Then no
break is seen, and calls would wait until their deadline.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from hccl_py.transport.bootstrap.world import Key

GIVEN_UP_S = 12.0
"""For how long the network may keep all connections of a lane away."""


class UnmadeLanes:
    """The connections that the network keeps away: since when, and why."""

    def __init__(self, num_paths: Callable[[int], int]) -> None:
        """Know of none; `num_paths` says how many connections a lane to a rank has."""
        self._num_paths = num_paths
        self._unmade: dict[Key, tuple[float, str]] = {}

    def note(self, key: Key, why: str) -> None:
        """Note that an attempt never came as far as the peer's process."""
        since_s, _ = self._unmade.get(key, (time.monotonic(), ""))
        self._unmade[key] = since_s, why

    def forget(self, keys: Iterable[Key]) -> None:
        """Note that an attempt did."""
        for key in keys:
            self._unmade.pop(key, None)

    def forget_path(self, rank: int, path: int) -> None:
        """Note that the whole path is down, which the engine sees."""
        self.forget([key for key in self._unmade if (key.rank, key.path) == (rank, path)])

    def take_given_up(self) -> Iterator[tuple[Key, str]]:
        """Yield, once, a connection of each lane without any for too long, and why."""
        long_ago_s = time.monotonic() - GIVEN_UP_S
        for key, (since_s, why) in tuple(self._unmade.items()):
            paths = range(self._num_paths(key.rank))
            lane = [Key(key.rank, key.index, path) for path in paths]
            if key in self._unmade and all(self._since_s(one) <= long_ago_s for one in lane):
                self.forget(lane)
                yield key, f"{key} was tried for {time.monotonic() - since_s:.0f} s: {why}"

    def _since_s(self, key: Key) -> float:
        return self._unmade.get(key, (float("inf"), ""))[0]
