"""Where the lines of ranks go: `--prefix`, `--log-dir`, and torchrun's options for streams.

`--redirects` and `--tee` take 0 (neither stream), 1 (standard output), 2 (standard error) or 3
(both), for all ranks or as LOCAL_RANK:NUMBER,... for some. A redirected stream goes to the log file
and not to the screen, one with a tee to both.
"""

import os
import socket
from enum import Flag
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.usage_error import UsageError


class Route(Flag):
    """Where lines go; neither: they are dropped."""

    SCREEN = 1
    FILE = 2


class OutputOptions(NamedTuple):
    """The options as the user gave them; they travel to other hosts as they are."""

    prefix: str = "auto"
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""

    def check(self) -> None:
        """Raise UsageError where an option makes no sense."""
        for name, text in (("redirects", self.redirects), ("tee", self.tee)):
            try:
                parse_streams(text)
            except ValueError as error:
                raise UsageError(f"--{name}: {error}") from None
        shown = self.local_ranks_filter
        if shown and not all(part.strip().isdecimal() for part in shown.split(",")):
            raise UsageError(f"--local-ranks-filter: expected numbers, such as 0,1, got {shown!r}")
        if self.log_dir is None and not self._prints_all:
            raise UsageError("--redirects and --tee need --log-dir, where the files go")

    def check_folder(self) -> None:
        """Make the folder of log files; raise UsageError where files cannot be kept there."""
        if self.log_dir is None:
            return
        from hccl_py.launcher.output.rank_output import attempt_folder

        folder = Path(self.log_dir).absolute()
        try:
            with attempt_folder(folder, 0) as its:
                if not os.access(f"/proc/self/fd/{its}", os.W_OK | os.X_OK):
                    raise PermissionError(None, "Permission denied")
        except OSError as error:
            raise UsageError(
                f"--log-dir: expected a folder for files, cannot make {folder}/attempt_0 on "
                f"{socket.gethostname()}: {error.strerror}"
            ) from error

    def prefix_of(self, host: str, rank: int, world_size: int) -> bytes:
        """Return what stands before each line of a rank."""
        has_prefix = self.prefix == "always" or (self.prefix == "auto" and world_size > 1)
        return f"[{host}:{rank}] ".encode() if has_prefix else b""

    def route(self, local_rank: int, stream: int) -> Route:
        """Return where a stream, 1 or 2, of a local rank goes."""
        is_redirected, has_tee = (
            bool(option.get(local_rank, option.get(None, 0)) & stream)
            for option in map(parse_streams, (self.redirects, self.tee))
        )
        # With a folder alone, every rank's output is kept, and printed as well.
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
