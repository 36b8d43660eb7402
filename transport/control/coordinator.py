"""The coordinator: collects the ranks' reports and sends all one diagnosis. Does no I/O.

    rank 2   --report-->    coordinator  --ask-->     all other ranks
                                         <--reported--
                            diagnose()
             <--diagnosis--              --diagnosis--> all

Every rank can coordinate; normally the lowest rank that is neither ended nor silent does. Two ranks
may coordinate at once when ranks disagree. A coordinator waits for a lower one that has a report,
and passes on a diagnosis that another one made. The time is an argument, so tests need not wait.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from hccl_py.transport.control.reporter import DEAD, NO_ANSWER, Absence, Fate, Reporter

logger = logging.getLogger("hccl_py.transport")

Send = Callable[[int, str, Any], None]
"""Receiver, kind and body of a message."""
WINDOW_S = 0.25
"""Longest wait of a coordinator for the other ranks' reports."""
ACK_S = 0.25  # wait for an answer to a report before asking the next rank
DIAGNOSIS_S = 0.7  # wait for the diagnosis after the acknowledgement
_DELIVERY_S = 0.5  # wait of the coordinator's own rank for delivery to the others
_SUCCESSOR_WAIT_S = 0.1  # for late messages of an ended coordinator
_SILENT_PERIODS = 3.2  # heartbeat periods after which a rank counts as silent
_RANKS_AT_FULL_PACE = 128


def heartbeat_period_s(world_size: int) -> float:
    """Return the period for a world size: one coordinator receives all heartbeats."""
    return 0.25 * max(1.0, world_size / _RANKS_AT_FULL_PACE)


class Coordinator:
    """The serving side of one communicator at one rank. Idle until a rank writes to it."""

    def __init__(self, rank: int, world_size: int, reporter: Reporter, send: Send) -> None:
        self._rank = rank
        self._ranks = range(world_size)
        self._reporter = reporter
        self._send = send
        self._silence_s = _SILENT_PERIODS * heartbeat_period_s(world_size)
        self._seen_s: dict[int, float] = {}
        self._ended: dict[int, Absence] = {}
        self._reports: dict[int, bytes] = {}
        self._opened_s: float | None = None  # when the collection of reports began
        self._earliest_s = 0.0  # earliest time to decide
        self._window_s = WINDOW_S
        self._following: int | None = None  # a lower rank that also coordinates
        self._diagnosis: bytes | None = None
        self._unconfirmed: set[int] = set()  # ranks that have not acknowledged the diagnosis
        self._mine_s: float | None = None  # latest time of delivery to this rank

    def remaining(self) -> list[int]:
        """List the ranks that have not ended, silent ones included."""
        return [rank for rank in self._ranks if rank not in self._ended]

    def on_beat(self, sender: int, body: Any, now_s: float) -> None:
        """Record a heartbeat; exchange the diagnosis with a rank that missed it, or has it."""
        sent_ns, has_diagnosis, ended, silent_s = body
        self._send(sender, "beat-back", [sent_ns, time.time_ns()])
        self._note_ended(ended)
        for rank, one_s in silent_s.items():  # unless this rank has later knowledge
            self._seen_s.setdefault(rank, now_s - one_s)
        self._note_seen(sender, now_s)
        if self._diagnosis is not None and not has_diagnosis:
            self._send(sender, "diagnosis", self._diagnosis)
        elif self._diagnosis is None and has_diagnosis:
            self._send(sender, "ask", None)

    def _note_seen(self, sender: int, now_s: float) -> None:
        if sender == self._rank and self._silent_s(sender, now_s):
            self._seen_s.clear()  # this process was stopped and received nothing
        self._seen_s[sender] = now_s

    def _note_ended(self, ended: Any) -> None:
        """Record the ranks that a rank saw end. A goodbye overrides silence."""
        for rank, left, sequence in ended:
            if left:
                self._ended[int(rank)] = Absence(Fate.LEFT, f"left after collective {sequence:d}")
            else:
                self._ended.setdefault(int(rank), DEAD)

    def on_report(self, sender: int, body: Any, now_s: float) -> None:
        """Accept a report; the first one starts the collection of all ranks' reports.

        Reports may show a failure together although no rank observed one.
        """
        packed, window_s, acknowledged_by = body
        self._note_seen(sender, now_s)
        self._reports[sender] = _checked(packed)
        if self._diagnosis is not None:
            self._send(sender, "diagnosis", self._diagnosis)
            return
        self._send(sender, "ack", None)
        is_lower = acknowledged_by is not None and acknowledged_by < self._rank
        if is_lower and acknowledged_by not in self._ended:
            self._following = acknowledged_by
        self._window_s = min(self._window_s, window_s or WINDOW_S)
        self._open(sender, now_s)

    def on_answer(self, sender: int, body: Any, now_s: float) -> None:
        """Accept a requested report, which starts no collection."""
        if self._opened_s is not None:
            self.on_report(sender, body, now_s)

    def _open(self, sender: int, now_s: float) -> None:
        if self._opened_s is not None:
            return
        self._opened_s = now_s
        if any(rank in self._ended for rank in range(self._rank)):
            self._earliest_s = now_s + _SUCCESSOR_WAIT_S
        if self._silent_s(self._rank, now_s):
            # Heartbeats sent to another coordinator are not silence.
            self._seen_s = {sender: now_s, self._rank: now_s}
        for rank in self.remaining():
            if rank not in self._reports:
                self._send(rank, "ask", None)

    def on_confirmation(self, sender: int, body: Any, now_s: float) -> None:
        """Record that a rank has the diagnosis."""
        self._unconfirmed.discard(sender)

    def on_diagnosis(self, sender: int, body: Any, now_s: float) -> None:
        """Pass on a diagnosis that a rank has adopted: there must be no second one."""
        if self._diagnosis is None:
            self._diagnosis = _checked(body)
            if self._opened_s is not None:
                self._send_to_all(self._diagnosis, now_s)

    def tick(self, now_s: float) -> None:
        """Decide once all ranks have reported or the time is up."""
        if self._diagnosis is not None:
            self._deliver_here(now_s)
            return
        if self._opened_s is None or now_s < self._earliest_s:
            return
        self._earliest_s = 0.0
        if now_s < self._opened_s + self._window_s and any(
            rank not in self._reports and not self._silent_s(rank, now_s)
            for rank in self.remaining()
        ):
            return
        # This rank receives the lower rank's diagnosis, and forwards it to all that asked here.
        follows = self._following is not None and self._following not in self._ended
        if follows and now_s < self._opened_s + DIAGNOSIS_S:
            return
        self._decide(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        if self._opened_s is None or self._diagnosis is not None:
            return math.inf if self._mine_s is None else self._mine_s
        window_s = self._window_s if self._following is None else DIAGNOSIS_S
        return self._earliest_s or self._opened_s + window_s

    def _decide(self, now_s: float) -> None:
        absent = {
            rank: self._ended.get(rank) or self._silence(rank, now_s)
            for rank in self._ranks
            if rank not in self._reports
        }
        # A rank that reported and then died counts as dead; its report explains why.
        try:
            self._diagnosis = self._reporter.diagnose(dict(self._reports), absent)
        except Exception:  # each engine then fails later by its own observation
            logger.exception("rank %d could not diagnose the failure", self._rank)
        if self._diagnosis is not None:
            self._send_to_all(self._diagnosis, now_s)
            return
        self._opened_s = None
        self._reports.clear()

    def _send_to_all(self, diagnosis: bytes, now_s: float) -> None:
        self._reporter.adopt(diagnosis)
        for rank in self.remaining():
            if rank != self._rank:
                self._send(rank, "diagnosis", diagnosis)
        self._unconfirmed = set(self._reports) - {self._rank}
        self._mine_s = now_s + _DELIVERY_S
        self._deliver_here(now_s)

    def _deliver_here(self, now_s: float) -> None:
        """End this rank's calls last, because its process may then exit."""
        all_have = self._unconfirmed <= self._ended.keys()
        if self._mine_s is not None and (all_have or now_s >= self._mine_s):
            self._mine_s = None
            self._send(self._rank, "diagnosis", self._diagnosis)

    def _silent_s(self, rank: int, now_s: float) -> float:
        silent_s = now_s - self._seen_s.setdefault(rank, now_s)
        return silent_s if silent_s > self._silence_s else 0.0

    def _silence(self, rank: int, now_s: float) -> Absence:
        silent_s = self._silent_s(rank, now_s)
        text = f"silent for {silent_s:.1f} s"
        return Absence(Fate.UNKNOWN, text, silent_s) if silent_s else NO_ANSWER


def _checked(packed: Any) -> bytes:
    if not isinstance(packed, bytes):
        raise ValueError(f"expected a packed record, got {type(packed).__name__}")
    return packed
