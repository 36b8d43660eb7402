"""The destinations of ranks' lines: `--prefix`, `--log-dir`, torchrun's options for streams.

`--redirects` and `--tee` take 0 (neither stream), 1 (standard output), 2 (standard error) or 3
(both), for all ranks or as LOCAL_RANK:NUMBER,... for some. A redirected stream goes to the log file
only, one with a tee to file and screen.
"""

from enum import Flag
from typing import NamedTuple

from hccl_py.launcher.exit_codes import UsageError


class Route(Flag):
    """Destinations of lines; neither: they are dropped."""

    SCREEN = 1
    FILE = 2


class OutputOptions(NamedTuple):
    """The user's options, sent to other hosts unchanged."""

    prefix: str = "auto"
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""

    def check(self) -> None:
        """Raise UsageError if there is no folder for log files."""
        if self.log_dir is None and not self._prints_all:
            raise UsageError("--redirects and --tee need --log-dir, where the files go")

    def prefix_of(self, host: str, rank: int, world_size: int) -> bytes:
        """Return the prefix of a rank's lines."""
        has_prefix = self.prefix == "always" or (self.prefix == "auto" and world_size > 1)
        return f"[{host}:{rank}] ".encode() if has_prefix else b""

    def route(self, local_rank: int, stream: int) -> Route:
        """Return where a stream, 1 or 2, of a local rank goes."""
        is_redirected, has_tee = (
            bool(option.get(local_rank, option.get(None, 0)) & stream)
            for option in map(parse_streams, (self.redirects, self.tee))
        )
        # With only a folder, every rank's output is logged and printed.
        has_tee = has_tee or (self.log_dir is not None and self._prints_all)
        shown = self.local_ranks_filter
        is_shown = not shown or local_rank in map(int, shown.split(","))
        route = Route.FILE if is_redirected or has_tee else Route(0)
        return route | Route.SCREEN if is_shown and (has_tee or not is_redirected) else route

    @property
    def _prints_all(self) -> bool:
        """Whether no stream is redirected or has a tee."""
        options = map(parse_streams, (self.redirects, self.tee))
        return not any(number for option in options for number in option.values())


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
