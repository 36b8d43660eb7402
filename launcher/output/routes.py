"""Where a stream of a rank goes: `--redirects`, `--tee` and `--local-ranks-filter`, as torchrun's.

Both options take 0 (neither stream), 1 (standard output), 2 (standard error) or 3 (both), for all
ranks or as LOCAL_RANK:NUMBER,... for some. A redirected stream goes to the log file and not to the
screen, one with a tee to both.
"""

from collections.abc import Mapping
from enum import Flag
from typing import NamedTuple


class Route(Flag):
    """Where lines go; neither: they are dropped."""

    SCREEN = 1
    FILE = 2


class Routes(NamedTuple):
    """The three options, read."""

    redirects: Mapping[int | None, int]
    tee: Mapping[int | None, int]
    on_screen: frozenset[int] = frozenset()  # local ranks; empty: all

    def route(self, local_rank: int, stream: int) -> Route:
        """Return where a stream, 1 or 2, of a local rank goes."""
        redirected = bool(_streams(self.redirects, local_rank) & stream)
        tee = bool(_streams(self.tee, local_rank) & stream)
        route = Route.FILE if redirected or tee else Route(0)
        is_shown = not self.on_screen or local_rank in self.on_screen
        return route | Route.SCREEN if is_shown and (tee or not redirected) else route


def parse_streams(text: str) -> dict[int | None, int]:
    """Read the value of `--redirects` or `--tee`; key None stands for all ranks.

    Raises:
        ValueError: it is neither a number from 0 to 3 nor LOCAL_RANK:NUMBER,...
    """
    found: dict[int | None, int] = {}
    for part in text.split(","):
        local_rank, _, number = part.rpartition(":")
        if number not in ("0", "1", "2", "3") or not (local_rank.isdecimal() or text == number):
            raise ValueError(f"expected 0 to 3 or LOCAL_RANK:0-3,..., got {text!r}")
        found[int(local_rank) if local_rank else None] = int(number)
    return found


def _streams(option: Mapping[int | None, int], local_rank: int) -> int:
    return option.get(local_rank, option.get(None, 0))
