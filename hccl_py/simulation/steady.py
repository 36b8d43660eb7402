"""Tiles that repeat themselves: the time of the rest of them is counted, not run.

All tiles but the last have the same work. Once every rank ends each tile the same time after the
one `period` before it, twice in a row, the tiles to come do so too. So a multiple of `period` of
them is left out, and their time is added to the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hccl_py.simulation.parts import Channel

_PERIODS = (2, 4)  # of two channels
_REPEATS = 2
# Of times, and of the distance where tiles have so many messages that to run on would take minutes.
_ALIKE, _NEARLY_ALIKE = 1e-9, 1e-3
_MANY_MESSAGES = 20_000
_SPARE_TILES = 2
_REMEMBERED = 24  # tiles

Ends = npt.NDArray[np.float64]


class Steadiness:
    """Watches the ends of tiles.

    Attributes:
        left_out_us: the time of the tiles that were left out.
    """

    def __init__(self, rank_index: Mapping[int, int], num_messages: int) -> None:
        """Watch ranks.

        Args:
            rank_index: the ranks that are simulated, counted from 0, by number.
            num_messages: of all of them in a tile.
        """
        self._is_coarse = num_messages > _MANY_MESSAGES
        self.left_out_us = 0.0
        self.num_left_out = 0
        self._index = rank_index
        self._ends: dict[int, Ends] = {}
        self._missing: dict[int, int] = {}
        self._last_begun = 0

    def note(self, channel: Channel, at: float, num_tiles: int) -> int:
        """Note the end of a channel's tile; return how many tiles there are to be run."""
        tile, num_ranks = channel.tile, len(self._index)
        if tile not in self._ends:
            self._ends[tile] = np.zeros(num_ranks)
            self._missing[tile] = num_ranks
        self._ends[tile][self._index[channel.rank.number]] = at
        self._missing[tile] -= 1
        self._last_begun = max(self._last_begun, tile + 2)
        if self._missing[tile] or self.num_left_out:
            return num_tiles
        self._ends.pop(tile - _REMEMBERED, None)
        for period in _PERIODS:
            distance_us = self._distance_us(tile, period)
            if distance_us is not None:
                return self._leave_out(num_tiles, period, distance_us)
        return num_tiles

    def _distance_us(self, tile: int, period: int) -> float | None:
        """Return the time between tiles, if it is the same for all ranks and the last tiles."""
        distances = []
        for back in range(period):
            ends = [self._ends.get(tile - back - turn * period) for turn in range(_REPEATS + 1)]
            if any(one is None for one in ends):
                return None
            if any(self._missing[tile - back - turn * period] for turn in range(_REPEATS + 1)):
                return None
            distances += [one - two for one, two in zip(ends, ends[1:], strict=False)]  # type: ignore[operator]
        every = np.array(distances)
        distance_us = float(every.mean())
        allowed = _ALIKE * max(distance_us, float(self._ends[tile].max()))
        if self._is_coarse:
            allowed = max(allowed, _NEARLY_ALIKE * distance_us)
        return distance_us if np.abs(every - distance_us).max() <= allowed else None

    def _leave_out(self, num_tiles: int, period: int, distance_us: float) -> int:
        begun = self._last_begun + 1 + _SPARE_TILES
        periods = (num_tiles - begun) // period
        if periods <= 0:
            return num_tiles
        self.num_left_out = periods * period
        self.left_out_us = periods * distance_us
        return num_tiles - self.num_left_out
