"""What is known of a rank that failed, which of several came first, and how a person is told.

No processes and no torch here: `agent` makes these records, `job` prints them.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

_LOG_TAIL_BYTES = 4000
_MOST_LINES = 8
_MOST_COLUMNS = 160
# Elastic looks at its workers every 0.1 s, later on a loaded machine; a death that left no record
# is dated when it is noticed, a recorded exception when it was raised.
_NOTICED_LATE_S = 2.0


@dataclass(frozen=True)
class Failure:
    """One rank's end.

    Attributes:
        rank: its rank in the job.
        node: the node that it ran on; local_rank, its place there.
        exit_code: the process's exit code; negative for a signal.
        message: the exception in one line; empty if none was recorded.
        traceback: the exception with its stack; empty if none was recorded.
        at_s: when it was raised or noticed, seconds since the epoch.
        log: path of its log file.
    """

    rank: int
    node: int
    local_rank: int
    pid: int
    exit_code: int
    message: str
    traceback: str
    at_s: float
    log: str

    @property
    def summary(self) -> str:
        """Say in one line how it ended."""
        if self.message:
            return f"failed: {shorten(self.message.splitlines()[0], _MOST_COLUMNS)}"
        if self.exit_code < 0:
            return f"was killed by {_signal_name(-self.exit_code)}"
        return f"exited with code {self.exit_code}"

    @property
    def shell_code(self) -> int:
        """The exit code in the shell's convention, 128 + signal for a signal."""
        return self.exit_code if self.exit_code > 0 else 128 - self.exit_code


def first_failure(failures: Sequence[Failure]) -> Failure:
    """Choose the root cause: ranks that only lost a peer, or that we stopped, come after it."""
    own = [each for each in failures if not _was_stopped(each)] or list(failures)
    return min(own, key=_happened_at_s)


def _happened_at_s(failure: Failure) -> float:
    # A peer that loses its connection raises and records it, while the process that vanished
    # leaves nothing and is noticed after that.
    return failure.at_s if failure.message else failure.at_s - _NOTICED_LATE_S


def render(failures: Sequence[Failure], world_size: int | None) -> str:
    """Tell the root cause in full and every other failure in a line."""
    first = first_failure(failures)
    of = f" of {world_size}" if world_size else ""
    lines = [
        f"hccl-launch: rank {first.rank}{of} {first.summary}",
        f"  node {first.node}, local rank {first.local_rank}, pid {first.pid}, "
        f"exit code {first.exit_code}",
        f"  log: {first.log}",
    ]
    text = first.traceback or first.message.partition("\n")[2] or _tail(first.log)
    if text:
        lines += ["", text.rstrip(), ""]
    later = [each for each in failures if each is not first and not _was_stopped(each)]
    lines += _render_later(first, sorted(later, key=lambda each: each.rank))
    if world_size is None or len(later) + 1 < world_size:
        lines.append("  all other ranks were stopped")
    return "\n".join(lines)


def _render_later(first: Failure, later: Sequence[Failure]) -> list[str]:
    same = [str(each.rank) for each in later if each.message and each.message == first.message]
    others = [each for each in later if str(each.rank) not in same]
    lines = [f"  then the same on rank {', '.join(same)}"] if same else []
    for each in others[:_MOST_LINES]:
        lines.append(f"  then rank {each.rank} {each.summary} (log: {each.log})")
    if len(others) > _MOST_LINES:
        lines.append(f"  and {len(others) - _MOST_LINES} more ranks")
    return lines


def _was_stopped(failure: Failure) -> bool:
    return failure.exit_code == -signal.SIGTERM


def _tail(path: str) -> str:
    """Return the end of a log file; nothing for a record in JSON, which has been told already."""
    if path.endswith(".json") or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
