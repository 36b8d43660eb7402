"""From the reports of several ranks to one verdict for all: the serving side, without I/O.

    rank 2   --report-->  coordinator  --ask-->     all other ranks
                                       <--report--
                          judge()
             <--verdict--              --verdict--> all others
                                       <--taken--
             and last the coordinator's own rank, whose process may end with its calls

Any rank can be asked to serve; the lowest that is neither dead nor silent normally is. When
opinions are split, two may serve at once: one that hears that a rank was acknowledged by a lower
one follows it, and one that hears of a verdict hands on that one. Time is an argument, so tests
need not wait.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .principal import Absence, Absent, Lost, Report, Verdict
from .timing import Timing

logger = logging.getLogger("hccl_py.transport")

Send = Callable[[int, str, Any], None]
"""Receiver, kind and body of a message."""


_HAND_OUT_S = 0.2
"""How long the coordinator's own rank waits for the others to have the verdict."""


class Judge(Protocol):
    """Decides; see `Principal.judge`."""

    def __call__(self, reports: Mapping[int, Report], absent: Mapping[int, Absence], /) -> Verdict:
        """Return the verdict."""


class Coordinator:
    """The serving side of one communicator at one rank. Idle until somebody writes to it."""

    def __init__(
        self, rank: int, world_size: int, judge: Judge, send: Send, timing: Timing
    ) -> None:
        """Serve as `rank`."""
        self._rank = rank
        self._world_size = world_size
        self._judge = judge
        self._send = send
        self._timing = timing
        self._heard_s: dict[int, float] = {}
        self._lost: dict[int, Absence] = {}
        self._reports: dict[int, Report] = {}
        self._opened_s: float | None = None
        self._inquiring = False  # nobody has proposed a failure
        self._window_s = timing.window_s
        self._following: int | None = None
        self.verdict: Verdict | None = None
        self._untaken: set[int] = set()  # other ranks that were sent the verdict
        self._mine_s: float | None = None  # when this rank gets it, at the latest

    def present(self, now_s: float) -> list[int]:
        """List the ranks that are neither lost nor silent."""
        ranks = range(self._world_size)
        return [
            rank for rank in ranks if rank not in self._lost and not self._silent_s(rank, now_s)
        ]

    def standing(self) -> list[int]:
        """List the ranks that are not lost; some may be silent."""
        return [rank for rank in range(self._world_size) if rank not in self._lost]

    def hear_beat(self, sender: int, has_verdict: bool, now_s: float) -> None:
        """Note that a rank lives; one that has missed the verdict gets it, from this or that."""
        self._heard_s[sender] = now_s
        if self.verdict is not None and not has_verdict:
            self._send(sender, "verdict", self.verdict)
        elif self.verdict is None and has_verdict:
            self._send(sender, "ask", None)

    def hear_lost(self, sender: int, lost: list[Lost]) -> None:
        """Note which ranks some rank has lost. The goodbye of a rank outweighs its silence.

        That a rank is dead this rank's own engine knows as soon as any other. What others alone
        lost may live, and coordinate: then only the connection between the two is gone, and two
        coordinators must not tell two stories of it.
        """
        for rank, left, sequence in lost:
            if left:
                self._lost[rank] = Absence(Absent.LEFT, sequence)
            elif sender == self._rank:
                self._lost.setdefault(rank, Absence(Absent.DEAD))

    def hear_silent(self, silent_s: Mapping[int, float], now_s: float) -> None:
        """Note who was silent towards some rank, and for how long, where nothing else is known."""
        for rank, one_s in silent_s.items():
            self._heard_s.setdefault(rank, now_s - one_s)

    def hear_report(
        self, sender: int, report: Report, acknowledged_by: int | None, now_s: float
    ) -> None:
        """Take a report, and begin to collect all others if it is the first.

        Args:
            sender: whose it is.
            report: what it saw.
            acknowledged_by: which coordinator already has it.
            now_s: the time.
        """
        self._inquiring = False
        self._take(sender, report, acknowledged_by, now_s)

    def _take(self, sender: int, report: Report, acknowledged_by: int | None, now_s: float) -> None:
        self._heard_s[sender] = now_s
        self._reports[sender] = report
        if self.verdict is not None:
            self._send(sender, "verdict", self.verdict)
            return
        self._send(sender, "ack", None)
        if (
            acknowledged_by is not None
            and acknowledged_by < self._rank
            and acknowledged_by not in self._lost
        ):
            self._following = acknowledged_by
        self._window_s = min(self._window_s, report.get("window_s") or self._timing.window_s)
        self._open(sender, now_s)

    def _open(self, sender: int, now_s: float) -> None:
        if self._opened_s is None:
            self._opened_s = now_s
            if self._silent_s(self._rank, now_s):
                # Not in office: the others' heartbeats went elsewhere, which is no silence.
                self._heard_s = {sender: now_s, self._rank: now_s}
            for rank in self.standing():
                if rank not in self._reports:
                    self._send(rank, "ask", None)

    def hear_answer(
        self, sender: int, report: Report, acknowledged_by: int | None, now_s: float
    ) -> None:
        """Take a report that was asked for: nothing begins with it."""
        if self._opened_s is not None:
            self._take(sender, report, acknowledged_by, now_s)

    def inquire(self, sender: int, now_s: float) -> None:
        """Collect all reports although nobody proposes a failure: they may show one together."""
        if self._opened_s is None and self.verdict is None:
            self._inquiring = True
            self._open(sender, now_s)

    def hear_taken(self, sender: int) -> None:
        """Note that a rank has the verdict."""
        self._untaken.discard(sender)

    def hear_verdict(self, verdict: Verdict, now_s: float) -> None:
        """Hand on a verdict that some rank has adopted already: there shall be no second one."""
        if self.verdict is not None:
            return
        self.verdict = verdict
        if self._opened_s is not None:
            self._hand_out(verdict, now_s)

    def tick(self, now_s: float) -> None:
        """Decide when all have reported, or time is up; then hand out."""
        if (
            self.verdict is not None
            and self._mine_s is not None
            and (self._untaken <= self._lost.keys() or now_s >= self._mine_s)
        ):
            self._mine_s = None
            self._send(self._rank, "verdict", self.verdict)
        if self._opened_s is None or self.verdict is not None:
            return
        awaited = [rank for rank in self.present(now_s) if rank not in self._reports]
        if awaited and now_s < self._opened_s + self._window_s:
            return
        follows = self._following is not None and self._following not in self._lost
        # Its verdict comes to this rank too; then hear_verdict() serves whoever asked here.
        if follows and now_s < self._opened_s + self._timing.verdict_s:
            return
        self._decide(now_s)

    def next_s(self) -> float | None:
        """Return when to call `tick` again, at the latest; None: whenever."""
        if self._opened_s is None or self.verdict is not None:
            return self._mine_s
        patience_s = self._window_s if self._following is None else self._timing.verdict_s
        return self._opened_s + patience_s

    def _decide(self, now_s: float) -> None:
        absent = {
            rank: self._lost.get(rank) or self._absence(rank, now_s)
            for rank in range(self._world_size)
            if rank not in self._reports
        }
        # A rank that reported and died since is dead all the same; its report says why it went.
        try:
            verdict = self._judge(dict(self._reports), absent)
        except Exception:
            if self._inquiring:  # all is well, as far as anybody can tell
                self._opened_s = None
                self._reports.clear()
                return
            # Every engine then ends by its own account, late but surely.
            logger.exception("rank %d could not come to a verdict", self._rank)
            self._opened_s = None
            return
        self.verdict = verdict
        self._hand_out(verdict, now_s)

    def _hand_out(self, verdict: Verdict, now_s: float) -> None:
        self._send(self._rank, "adopt", verdict)
        for rank in self.standing():
            if rank != self._rank:
                self._send(rank, "verdict", verdict)
        self._untaken = set(self._reports) - {self._rank}
        self._mine_s = now_s + _HAND_OUT_S
        self.tick(now_s)

    def _silent_s(self, rank: int, now_s: float) -> float:
        """Return for how long a rank has been silent; 0 if it is not."""
        heard_s = self._heard_s.setdefault(rank, now_s)
        silent_s = now_s - heard_s
        return silent_s if silent_s > self._timing.silence_s else 0.0

    def _absence(self, rank: int, now_s: float) -> Absence:
        silent_s = self._silent_s(rank, now_s)
        return Absence(Absent.SILENT if silent_s else Absent.NO_ANSWER, silent_s=silent_s)
