"""What the user says of the output of ranks."""

import socket
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.output.routes import Routes, parse_streams
from hccl_py.launcher.usage_error import UsageError

_BOTH = 3


class OutputWords(NamedTuple):
    """The options as the user gave them, which travel to other hosts as they are."""

    prefix: str = "auto"
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""


class OutputOptions(NamedTuple):
    """`--prefix`, `--log-dir`, and which streams go where.

    Attributes:
        prefix: whether each line says host and rank; None: where there are several ranks.
        log_dir: folder of log files; None: there are none.
        routes: which streams go where.
    """

    prefix: bool | None
    log_dir: Path | None
    routes: Routes

    @classmethod
    def of(cls, words: OutputWords) -> "OutputOptions":
        """Read the options; raise UsageError."""
        streams = {}
        for name, text in (("redirects", words.redirects), ("tee", words.tee)):
            try:
                streams[name] = parse_streams(text)
            except ValueError as error:
                raise UsageError(f"--{name}: {error}") from None
        shown = words.local_ranks_filter.replace(" ", "")
        if shown and not all(part.isdecimal() for part in shown.split(",")):
            raise UsageError(f"--local-ranks-filter: expected numbers, such as 0,1, got {shown!r}")
        is_kept = any(number for each in streams.values() for number in each.values())
        if is_kept and words.log_dir is None:
            raise UsageError("--redirects and --tee need --log-dir, where the files go")
        if words.log_dir is not None and not is_kept:
            streams["tee"] = {None: _BOTH}  # every rank's output is kept, and printed as well
        return cls(
            {"auto": None, "always": True, "never": False}[words.prefix],
            Path(words.log_dir).absolute() if words.log_dir is not None else None,
            Routes(
                streams["redirects"],
                streams["tee"],
                frozenset(int(part) for part in shown.split(",") if part),
            ),
        )

    def check_folder(self) -> None:
        """Make the folder of log files; raise UsageError where files cannot be kept there."""
        if self.log_dir is None:
            return
        from hccl_py.launcher.output.rank_output import LogFile

        try:
            LogFile.make_folder(self.log_dir, 0)
        except OSError as error:
            raise UsageError(
                f"--log-dir: expected a folder for files, cannot make {self.log_dir}/attempt_0 on "
                f"{socket.gethostname()}: {error.strerror}"
            ) from error

    def prefix_of(self, host: str, rank: int, world_size: int) -> bytes:
        """Return what stands before each line of a rank."""
        wanted = world_size > 1 if self.prefix is None else self.prefix
        return f"[{host}:{rank}] ".encode() if wanted else b""
