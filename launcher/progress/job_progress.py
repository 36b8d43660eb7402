"""The ranks of a job at the coordinator, without I/O: status line, and stalled ranks.

A rank without progress is reported once. After it continues it can be reported again, after twice
the time: a job that writes a one-minute checkpoint every epoch does not get a line each time.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain
from typing import NamedTuple

from hccl_py.launcher.number_ranges import name_ranks, ranges
from hccl_py.launcher.progress.rank_progress import (
    CONNECTED,
    CONNECTING,
    STARTED,
    STOPPED,
    RankProgress,
)

STALL_VARIABLE = "HCCL_STALL_WARNING_S"
LEAST_STALL_S = 1.0
"""Samples of a shorter time cannot distinguish a busy rank's pause from a stall."""
_MOST_SAMPLE_S = 5.0
_SAMPLES_PER_STALL = 4
_MAX_NAMED, _MAX_STACKS = 8, 3
_HINT = "with py-spy installed on the hosts (pip install py-spy), their stacks would be shown here"


class Outlets(NamedTuple):
    """The outputs of the progress reports.

    Attributes:
        say: takes a warning.
        show: takes the status line; None: no terminal.
        ask_stack: makes an agent send a rank's stack to `JobProgress.take_stack`.
    """

    say: Callable[[str], None]
    show: Callable[[str], None] | None
    ask_stack: Callable[[int, int], None]


def sample_s(stall_s: float, has_terminal: bool) -> float:
    """Return how often agents sample their ranks; 0: never."""
    period_s = min(_MOST_SAMPLE_S, stall_s / _SAMPLES_PER_STALL)
    if has_terminal:
        return min(period_s or PERIOD_S, PERIOD_S)
    return period_s


class JobProgress:
    """One attempt of a job."""

    def __init__(self, outlets: Outlets, stall_s: float, sample_s: float, ranks: range) -> None:
        """Start without samples; agents sample every `sample_s`.

        `stall_s` of 0 reports no rank.
        """
        self._outlets, self._stall_s, self._sample_s = outlets, stall_s, sample_s
        self._ranks = set(ranks)
        self._by_agent: dict[int, Sequence[RankProgress]] = {}
        self._status = StatusLine()
        self._limits: dict[int, float] = {}
        self._named: set[int] = set()
        self._due_s: float | None = None
        self._has_hinted = False

    def take(self, agent: int, ranks: Sequence[RankProgress], now_s: float) -> None:
        """Accept an agent's samples of its running ranks."""
        self._by_agent[agent] = ranks
        if self._outlets.show is not None and self._status.is_due(now_s):
            everyone = tuple(chain.from_iterable(self._by_agent.values()))
            self._outlets.show(self._status.line(everyone, now_s))
        if self._stall_s:
            self._find_stalled(ranks, now_s)

    def end(self, agent: int) -> None:
        """Record that no rank of an agent runs any more."""
        self._by_agent[agent] = ()

    def leave_out(self, failed: Set[int]) -> None:
        """Expect no progress of failed ranks; the others continue."""
        self._ranks -= failed

    def take_stack(self, rank: int, text: str) -> None:
        """Accept a rank's stack; empty: its host has no py-spy."""
        if text:
            lines = "\n    ".join(text.splitlines())
            self._outlets.say(f"hccl-launch: stack of rank {rank}: {lines}")
        elif not self._has_hinted:
            self._has_hinted = True
            self._outlets.say(f"hccl-launch: {_HINT}")

    def close(self) -> None:
        """Clear the status line."""
        if self._outlets.show is not None:
            self._outlets.show("")

    def _find_stalled(self, ranks: Sequence[RankProgress], now_s: float) -> None:
        for one in ranks:
            limit_s = self._limits.setdefault(one.rank, self._stall_s)
            if one.rank in self._named and self._goes_on(one):
                self._named.remove(one.rank)
                self._limits[one.rank] = 2 * limit_s
            elif one.rank not in self._named and one.idle_s >= limit_s and self._due_s is None:
                # Other agents sample a moment later.
                self._due_s = now_s + 1.5 * self._sample_s
        if self._due_s is not None and now_s >= self._due_s:
            self._due_s = None
            self._name_stalled()

    def _name_stalled(self) -> None:
        everyone = {one.rank: one for ranks in self._by_agent.values() for one in ranks}
        stalled = {
            rank
            for rank, one in everyone.items()
            if rank not in self._named and one.idle_s >= self._limits[rank]
        }
        if not stalled:
            return  # they have continued
        inside = {rank: one for rank, one in everyone.items() if one.call and one.phase != STOPPED}
        self._named |= stalled | {rank for rank, one in inside.items() if not self._goes_on(one)}
        missed = {rank for one in inside.values() for rank in one.waiting_for}
        # First the ranks outside of a call: the others wait for them.
        outside = sorted((stalled | (missed & everyone.keys())) - inside.keys())
        longest_s = max(everyone[rank].idle_s for rank in stalled)
        lines = [f"hccl-launch: no progress for {longest_s:.0f} s ({STALL_VARIABLE} sets how long)"]
        # Only if a rank exits with 0 do the others continue.
        if ended := sorted(self._ranks - everyone.keys()):
            verb = "has" if len(ended) == 1 else "have"
            lines.append(f"{name_ranks(ended)} {verb} ended, with exit code 0")
        lines += [self._outside(everyone[rank]) for rank in outside[:_MAX_NAMED]]
        if len(outside) > _MAX_NAMED:
            lines.append(f"ranks {ranges(outside[_MAX_NAMED:])} are in no collective either")
        lines += _waiting(inside)
        self._outlets.say("\n  ".join(lines))
        agents = {one.rank: agent for agent, ranks in self._by_agent.items() for one in ranks}
        shown = [one for one in outside or sorted(stalled) if everyone[one].phase != STOPPED]
        for rank in shown[:_MAX_STACKS]:
            self._outlets.ask_stack(agents[rank], rank)

    def _goes_on(self, one: RankProgress) -> bool:
        # At least every second sample of a computing rank shows that it computes.
        return one.idle_s <= 2 * self._sample_s

    def _outside(self, one: RankProgress) -> str:
        name = f"rank {one.rank} (host {one.host}, pid {one.pid})"
        if one.phase == STOPPED:
            return f"{name} is stopped; kill -CONT {one.pid} there continues it"
        doing = "computes or prints" if self._goes_on(one) else "neither computes nor prints"
        where = "connects" if one.phase == CONNECTING else "is in no collective"
        return f"{name} {where}, and {doing}"


def _waiting(inside: dict[int, RankProgress]) -> list[str]:
    """Return a line for each call that ranks wait in."""
    calls = sorted({one.call for one in inside.values()})
    lines = []
    for call in calls:
        ranks = sorted(rank for rank, one in inside.items() if one.call == call)
        missed = {rank for mine in ranks for rank in inside[mine].waiting_for}.difference(ranks)
        target = f" for {name_ranks(missed)}" if missed else ""
        verb = "waits" if len(ranks) == 1 else "wait"
        lines.append(f"{name_ranks(ranks)} {verb}{target} in {call}")
    return lines[:_MAX_NAMED]


PERIOD_S = 1.0
_WINDOW = 10  # number of lines for a rate


class _Totals(NamedTuple):
    at_s: float
    steps: int
    collectives: int
    num_bytes: int


class StatusLine:
    """Makes the status line of all ranks of a job, every PERIOD_S."""

    def __init__(self) -> None:
        self._latest: dict[int, RankProgress] = {}  # ended ranks included
        self._totals: deque[_Totals] = deque(maxlen=_WINDOW)
        self._began_s = math.inf
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return whether the next line is due; the first call starts the time."""
        self._began_s = min(self._began_s, now_s)
        return now_s >= self._next_s

    def line(self, ranks: Sequence[RankProgress], now_s: float) -> str:
        """Return the status line of the running ranks: what they do, later how fast."""
        self._next_s = now_s + PERIOD_S
        self._latest.update((one.rank, one) for one in ranks)
        everyone = self._latest.values()
        if any(one.collectives or one.num_bytes for one in everyone):
            # All ranks step together, so the fastest one shows the job's progress.
            steps = max(one.steps for one in everyone)
            collectives = max(one.collectives for one in everyone)
            num_bytes = sum(one.num_bytes for one in everyone)
            self._totals.append(_Totals(now_s, steps, collectives, num_bytes))
        elapsed = _clock(now_s - self._began_s)
        if len(self._totals) < 2:
            return f"ranks: {_phases(everyone)} | {elapsed}"
        then, now = self._totals[0], self._totals[-1]
        steps_per_s, collectives_per_s, bytes_per_s = (
            (after - before) / (now.at_s - then.at_s)
            for after, before in zip(now[1:], then[1:], strict=True)
        )
        parts = [f"{bytes_per_s / 1e9:.2f} GB/s in {collectives_per_s:.0f} collectives/s"]
        if now.steps:
            parts.insert(0, f"steps {now.steps}, {steps_per_s:.1f}/s")
        return " | ".join([*parts, elapsed])


def _phases(ranks: Iterable[RankProgress]) -> str:
    counted = Counter(one.phase for one in ranks)
    phases = (STARTED, CONNECTING, CONNECTED, STOPPED)
    return ", ".join(f"{counted[phase]} {phase}" for phase in phases if counted[phase])


def _clock(elapsed_s: float) -> str:
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"
