"""Adds up what the generations of a soak did, judges each one, and prints it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hccl_py.bench.soak_plan import CONNECT_WITH_STOPPED_S, DEADLY, MENDED, STUCK, WORLD, Generation
from hccl_py.bench.soak_rank import Outcome, Story

_SETTLED = 10
"""Generations after which a process has loaded and grown all that it ever needs."""
_FEW = {"descriptors": 4, "threads": 3, "mappings": 60, "memory": 256 << 20}
"""More than this over what a settled process had is a leak: caches still fill in a little."""


@dataclass
class Totals:
    """Everything that a soak did."""

    generations: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    num_waits: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    worst_s: dict[str, float] = field(default_factory=dict)
    repairs: int = 0
    replaced: int = 0
    shrunk: int = 0
    worst_shrink_s: float = 0.0
    settled: dict[int, dict[str, int]] = field(default_factory=dict)
    ages: Counter[int] = field(default_factory=Counter)
    most: dict[str, int] = field(default_factory=dict)

    def add(self, generation: Generation, outcomes: dict[int, Outcome], at_s: float | None) -> None:
        """Count one generation."""
        self.generations += 1
        fault = generation.fault
        if fault is not None:
            self.faults[fault.kind] += 1
        for outcome in outcomes.values():
            self.calls += outcome.calls
            self.num_bytes += outcome.num_bytes
            self.num_waits += outcome.num_waits
            self.repairs += outcome.num_repairs
            if outcome.shrunk_after_s is not None:
                self.shrunk += 1
                self.worst_shrink_s = max(self.worst_shrink_s, outcome.shrunk_after_s)
            for story in outcome.stories:
                self.told[story.kind] += 1
                if fault is None or at_s is None or story.group != fault.group:
                    continue
                if outcome.rank != fault.victim:
                    late_s = story.at_s - at_s - _waited_s(generation, outcomes)
                    self.worst_s[fault.kind] = max(self.worst_s.get(fault.kind, 0.0), late_s)

    def leak(self, pid: int, found: dict[str, int]) -> str | None:
        """Note what a process holds after a generation; return a complaint if it grew."""
        self.ages[pid] += 1
        if self.ages[pid] == _SETTLED:
            self.settled[pid] = found
        before = self.settled.get(pid)
        if before is None:
            return None
        for what, few in _FEW.items():
            grown = found[what] - before[what]
            self.most[what] = max(self.most.get(what, 0), grown)
            if grown > few:
                return f"process {pid} has {found[what]} {what}, it had {before[what]} once"
        return None

    def table(self) -> str:
        """Render all of it."""
        lines = [
            f"generations         {self.generations}",
            f"calls               {sum(self.calls.values()):,} on all ranks, of them "
            f"{self.num_waits:,} in the background",
            *(f"  {kind:<17} {count:,}" for kind, count in sorted(self.calls.items())),
            f"bytes               {self.num_bytes:,} of blocks",
            f"faults              {sum(self.faults.values())}; "
            "and the longest time until a rank had raised (stop and late: after the timeout)",
        ]
        for kind, count in sorted(self.faults.items()):
            worst = f"{self.worst_s[kind]:.3f} s" if kind in self.worst_s else "-"
            lines.append(f"  {kind:<17} {count:<6} {worst}")
        errors = ", ".join(f"{count} {kind}" for kind, count in sorted(self.told.items()))
        lines += [
            f"errors raised       {errors or 'none'}",
            f"repaired            {self.repairs} connections",
            f"processes replaced  {self.replaced}",
            f"shrunk              {self.shrunk} ranks, longest {self.worst_shrink_s:.3f} s",
            "growth, at most     "
            + ", ".join(f"{self.most.get(what, 0):,} {what}" for what in _FEW),
        ]
        return "\n".join(lines)


def judge(
    generation: Generation, outcomes: dict[int, Outcome], at_s: float | None, limit_s: float
) -> str | None:
    """Say what was wrong with a generation; None if nothing was."""
    for outcome in outcomes.values():
        if outcome.wrong is not None:
            return f"rank {outcome.rank}: {outcome.wrong}"
    fault = generation.fault
    stories = [(outcome.rank, story) for outcome in outcomes.values() for story in outcome.stories]
    unanswered = [outcome.rank for outcome in outcomes.values() if outcome.num_unanswered]
    if unanswered and (fault is None or fault.kind not in STUCK):
        return f"rank {unanswered[0]}: a message timed out without cause"
    if fault is None or fault.kind in MENDED:
        return f"rank {stories[0][0]} raised without cause: {stories[0][1]}" if stories else None
    told = {rank: story for rank, story in stories if story.group == fault.group}
    if fault.group != WORLD and (others := [s for _, s in stories if s.group != fault.group]):
        return f"{fault.kind} in {fault.group} broke another group: {others[0]}"
    return _complaint(generation, told, outcomes, at_s, limit_s)


def _waited_s(generation: Generation, outcomes: dict[int, Outcome]) -> float:
    """Return how long timeouts held up whoever waited for a rank that is stuck.

    Nothing is known of such a rank but that it does not come. Who opens a group with it, sends to
    it or calls another group that it is in waits until that alone has timed out, and hears in its
    next call of the communicator's end; who waits for that one waits as long.
    """
    fault = generation.fault
    if fault is None or fault.kind not in STUCK:
        return 0.0
    connected = all(outcome.not_connected is None for outcome in outcomes.values())
    alone = max(
        outcome.num_unanswered + sum(story.group != fault.group for story in outcome.stories)
        for outcome in outcomes.values()
    )
    return generation.timeout_s * (1 + alone) + (0.0 if connected else CONNECT_WITH_STOPPED_S)


def _complaint(
    generation: Generation,
    told: dict[int, Story],
    outcomes: dict[int, Outcome],
    at_s: float | None,
    limit_s: float,
) -> str | None:
    fault = generation.fault
    assert fault is not None
    if fault.group == WORLD and (silent := set(outcomes) - set(told) - {fault.victim}):
        states = {rank: (outcomes[rank].not_connected, outcomes[rank].calls) for rank in silent}
        return f"{fault.kind} of rank {fault.victim}: raised nothing, by rank: {states}"
    if not told:
        return f"{fault.kind} of rank {fault.victim} in {fault.group}: nobody raised"
    texts = {(story.kind, story.text, story.told) for story in told.values()}
    if len(texts) > 1:
        lines = [
            f"  rank {rank}: {story.kind}{story.told}: {story.text}"
            for rank, story in sorted(told.items())
        ]
        return "\n".join([f"{fault.kind}: ranks tell different stories", *lines])
    allowed_s = limit_s + _waited_s(generation, outcomes)
    for rank, story in told.items():
        if rank != fault.victim and at_s is not None and story.at_s - at_s > allowed_s:
            return f"rank {rank} raised {story.at_s - at_s:.2f} s after the {fault.kind}"
    named = {story.rank for story in told.values()}
    if told and fault.kind in DEADLY and named != {fault.victim}:
        return f"{fault.kind} of rank {fault.victim} was blamed on {named}: {texts}"
    return None
