"""The record of a failed rank, the choice of the first failure, and the report.

This file has no processes and no torch: `agent` makes and prints the records.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hccl_py.launcher.number_ranges import name_ranks

_MOST_KINDS = 8
_QUOTED = 300
# A death without a record has the time of the agent's notice, a recorded exception the time when it
# was raised. On a loaded machine another rank may notice the death and raise before the agent does.
_NOTICED_LATE_S = 0.1
# The end of a connection in the words of Python, gloo and torch's store.
_LOST_CONNECTION = re.compile(
    r"(closed|reset) by (remote )?peer|broken pipe|failed to recv|"
    r"^(Connection\w*|BrokenPipe|DistNetwork)Error\b",
    re.IGNORECASE,
)


class RankFailure(NamedTuple):
    """One rank's end; kind, message and traceback are empty if it recorded no exception."""

    rank: int
    node: int
    local_rank: int
    host: str  # empty: this host
    pid: int
    exit_code: int  # negative for a signal
    kind: str  # type of the exception
    message: str  # the exception in one line
    traceback: str  # the exception with its stack
    at_s: float  # when it was raised or noticed, seconds since the epoch
    log: str  # path of its log file; empty: none
    last_lines: tuple[str, ...] = ()  # of both streams
    reason: str = ""  # a likely reason, if the exit code says little
    was_stopped: bool = False  # it ended or raised after the launcher asked it to end
    was_killed: bool = False  # by the launcher, because it did not end on request
    blames: int | None = None  # the rank that hccl's error named

    def cut(self, most_chars: int) -> "RankFailure":
        """Return it with texts cut to `most_chars`, because messages have a limit."""
        lines = _cut("\n".join(self.last_lines), most_chars).split("\n")
        return self._replace(
            message=_cut(self.message, most_chars),
            traceback=_cut(self.traceback, most_chars),
            last_lines=tuple(lines) if self.last_lines else (),
        )

    @property
    def shell_code(self) -> int:
        """The exit code in the shell's convention, 128 + signal for a signal."""
        if self.exit_code == 0:
            return 1  # it left too early
        return self.exit_code if self.exit_code > 0 else 128 - self.exit_code

    @property
    def ended_by(self) -> str:
        """The exception, signal or exit code, in short."""
        if self.message:
            return self.kind or "an exception"
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        return _signal_name(-self.exit_code)

    @property
    def is_dated(self) -> bool:
        """Whether the rank itself recorded when it failed."""
        return bool(self.kind or self.message)

    @property
    def lost_a_connection(self) -> bool:
        """Whether its last lines report a lost connection."""
        # C++ code that loses a connection may print the reason and abort.
        lines = self.last_lines if self.exit_code == -signal.SIGABRT else ()
        return any(_LOST_CONNECTION.search(text) for text in (self.message, *lines))


def _cut(text: str, most_chars: int) -> str:
    """Keep the beginning and the end."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def first_failure(failures: Sequence[RankFailure]) -> RankFailure:
    """Choose the root cause: ranks that lost a peer or were stopped failed later."""
    own = [each for each in failures if not each.was_stopped] or list(failures)
    failed = {each.rank for each in own}
    causes = [each for each in own if each.blames in (None, each.rank) or each.blames not in failed]
    causes = [each for each in causes if not each.lost_a_connection] or causes or own
    return min(causes, key=lambda each: each.at_s - (0.0 if each.is_dated else _NOTICED_LATE_S))


def render(
    failures: Sequence[RankFailure], world_size: int | None, was_stopped: bool = True
) -> str:
    """Render the report: the later failures in a line, then the first one in full.

    `was_stopped`: the ranks that did not fail were stopped.
    """
    first = first_failure(failures)
    lines = [title(first, world_size)]
    if first.log:
        lines.append(f"  log: {first.log}")
    lines += [f"  likely reason: {first.reason}"] if first.reason else []
    text = first.traceback or first.message or "\n".join(first.last_lines)
    later = "; ".join(_later(first, failures, world_size, was_stopped))
    end = "failed" if first.exit_code else "ended"
    before = [f"hccl-launch: after rank {first.rank} {end}: {later}"] if later else []
    waiting = _what_a_peer_says(first, failures)
    return "\n".join([*before, *waiting, *lines, *([text.rstrip()] if text else [])])


def _what_a_peer_says(first: RankFailure, failures: Sequence[RankFailure]) -> list[str]:
    """Quote a rank that failed later: its call, or the rank that it waited for."""
    others = [each for each in failures if each is not first and each.message]
    if not others:
        return []
    peer = min(others, key=lambda each: each.at_s)
    line = peer.message.strip().split("\n", 1)[0]
    line = line if len(line) <= _QUOTED else line[:_QUOTED] + "..."
    return [f"hccl-launch: rank {peer.rank} then reported: {line}"]


def title(failure: RankFailure, world_size: int | None) -> str:
    """Describe in a line which rank failed, how and where."""
    of = f" of {world_size}" if world_size else ""
    host = f" on {failure.host}" if failure.host else ""
    details = f"node {failure.node}{host}, local rank {failure.local_rank}, pid {failure.pid}"
    details += f", exit code {failure.exit_code}" * (failure.exit_code > 0)
    return f"hccl-launch: rank {failure.rank}{of} {_how(failure)} ({details})"


def how_ended(rank: int, exit_code: int) -> str:
    """Describe how a rank ended, before its record is read."""
    return f"rank {rank} {_ended(exit_code)}"


def _how(failure: RankFailure) -> str:
    return "failed" if failure.message else _ended(failure.exit_code)


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {_signal_name(-exit_code)}"
    return f"exited with code {exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _later(
    first: RankFailure, failures: Sequence[RankFailure], world_size: int | None, was_stopped: bool
) -> Iterator[str]:
    others = [each for each in failures if each is not first and not each.was_stopped]
    killed = sorted(each.rank for each in failures if each.was_killed)
    ranks_by_end: dict[str, list[int]] = {}
    for each in sorted(others, key=lambda each: each.rank):
        ranks_by_end.setdefault(each.ended_by, []).append(each.rank)
    for number, (end, ranks) in enumerate(ranks_by_end.items()):
        if number == _MOST_KINDS:
            yield f"{sum(map(len, list(ranks_by_end.values())[number:]))} more ranks failed"
            break
        yield f"{end} on {name_ranks(ranks)}"
    if world_size is None or len(others) + 1 < world_size:
        yield "all other ranks were stopped" if was_stopped else "the other ranks ended well"
    if killed:
        yield cut_off(killed)


def cut_off(ranks: Sequence[int]) -> str:
    """Describe the ranks that were killed because they did not end in time."""
    return f"{name_ranks(ranks)} did not end in time (--shutdown-timeout) and got SIGKILL"
