"""The asking side of a coordinator: one rank of one communicator, without I/O.

The rank sends heartbeats to the coordinator, which answers each: either side notices the silence of
the other. The coordinator is the lowest rank that has neither ended nor become silent. When it
changes, or does not answer, all open questions go to the next one. Silence alone ends no rank.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from hccl_py.transport.clock import ClockProbe, ClockReading, wall_ns
from hccl_py.transport.control.agreement import Proposal
from hccl_py.transport.control.coordinator import Send, Timing
from hccl_py.transport.control.reporter import Diagnosis, Ended, Reporter

_MAX_UNANSWERED = 3
"""Heartbeats; counted, not timed: a process that was stopped itself must not blame the others."""


class CoordinatorClient:
    """One rank towards the coordinator. The control thread uses it."""

    def __init__(
        self,
        rank: int,
        reporter: Reporter,
        send: Send,
        timing: Timing,
    ) -> None:
        """Send the reports of `reporter`."""
        self._rank = rank
        self._reporter = reporter
        self._send = send
        self._timing = timing
        self._next_beat_s = 0.0
        self._ended: dict[int, Ended] = {}
        self._silent_since_s: dict[int, float] = {}
        self._passed_over: set[int] = set()  # late with its answer; until there is a diagnosis
        self._current = 0
        self._answered_s = 0.0
        # A coordinator that is still connecting gets nothing, and would never answer.
        self._has_answered = False
        self._unanswered = 0
        self._reported_s: float | None = None
        self._acknowledged_by: int | None = None
        self._probe = ClockProbe(0)
        self.diagnosis: Diagnosis | None = None
        # Open questions, to be asked again elsewhere; the next coordinator needs all `_sets` too.
        self._agreeing: dict[str, tuple[Proposal, Future[dict[int, Any]]]] = {}
        self._agreed: dict[str, dict[int, Any]] = {}
        self._questions: dict[int, tuple[str, list[Any], Future[Any]]] = {}
        self._sets: dict[str, bytes] = {}
        self._num_questions = 0
        self._handlers: Mapping[str, Callable[[int, Any], None]] = {
            "beat-back": self._on_beat,
            "ask": self._on_ask,
            "adopt": lambda _, body: self._reporter.adopt(body),
            "diagnosis": self._on_diagnosis,
            "agree-ask": self._on_agree_ask,
            "agreed": self._on_agreed,
            "answer": self._on_answer,
        }

    @property
    def coordinator(self) -> int:
        """The lowest rank that can be asked, at worst this one."""
        excluded = {*self._ended, *self._silent_since_s, *self._passed_over}
        return next((rank for rank in range(self._rank) if rank not in excluded), self._rank)

    # Time.

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._timing.period_s
            self._reporter.check_peers()
            self._observe(now_s)
            self._beat(now_s)
        if now_s >= self._answer_due_s():
            self._passed_over.add(self._current)
        self._follow_coordinator(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        return min(self._next_beat_s, self._answer_due_s())

    def _answer_due_s(self) -> float:
        """Return when the coordinator is late with its answer to a report."""
        waits = self._reported_s is not None and self.diagnosis is None
        if not waits or self._current == self._rank:
            return float("inf")
        assert self._reported_s is not None
        is_acknowledged = self._acknowledged_by is not None
        return self._reported_s + (
            self._timing.diagnosis_s if is_acknowledged else self._timing.ack_s
        )

    def on_news(self, now_s: float) -> None:
        """Report what the engine has observed."""
        if self._observe(now_s):
            self._beat(now_s)
        self._follow_coordinator(now_s)

    # What this rank observed.

    def _observe(self, now_s: float) -> bool:
        """Ask the reporter; True if ranks have ended since the last time."""
        ended = {one[0]: one for one in self._reporter.ended_ranks()}
        changed = ended != self._ended
        self._ended = ended
        if self.diagnosis is None:
            diagnosis = self._reporter.diagnosis()
            if diagnosis is not None:
                self._adopted(diagnosis)
        if self.diagnosis is None and self._reported_s is None and self._reporter.has_failure():
            self._follow_coordinator(now_s)
            self._send_report(now_s)
        return changed

    def _beat(self, now_s: float) -> None:
        self._unanswered += 1
        if self._current != self._rank and self._unanswered > _MAX_UNANSWERED:
            self._silent_since_s[self._current] = self._answered_s
            self._follow_coordinator(now_s)  # which beats again
            return
        silent_s = {rank: now_s - since_s for rank, since_s in self._silent_since_s.items()}
        body = [wall_ns(), self.diagnosis is not None, list(self._ended.values()), silent_s]
        self._send(self._current, "beat", body)
        for rank in self._silent_since_s:
            if rank < self._current:  # it may only have slept, and coordinate again
                self._send(rank, "beat", body)

    def _send_report(self, now_s: float) -> None:
        self._reported_s = now_s
        self._acknowledged_by = None
        self._send(self._current, "report", [self._reporter.report(), None])

    def _follow_coordinator(self, now_s: float) -> None:
        """If there is another coordinator than before, ask it all open questions."""
        if self.coordinator == self._current:
            return
        self._current = self.coordinator
        self._has_answered = False
        self._unanswered = 0
        self._answered_s = now_s
        self._probe = ClockProbe(self._current)
        self._beat(now_s)
        if self._reported_s is not None and self.diagnosis is None:
            self._send_report(now_s)
        self._ask_again()

    def _ask_again(self) -> None:
        for key, value in self._sets.items():
            self._send(self._current, "set", [0, key, value])
        for number, (kind, body, _) in self._questions.items():
            self._send(self._current, kind, [number, *body])
        for proposal, _ in self._agreeing.values():
            self._send(self._current, "agree", proposal.message())

    # Messages of a coordinator.

    def receive(self, sender: int, kind: str, body: Any, now_s: float) -> None:
        """Take a message of a rank that coordinates."""
        if sender == self._current:
            self._unanswered = 0
            self._answered_s = now_s
            if not self._has_answered:
                self._has_answered = True
                self._ask_again()
        self._silent_since_s.pop(sender, None)
        if kind == "ask":
            self._reporter.check_peers()
            self._observe(now_s)
        if kind == "ack" and self._acknowledged_by is None and self._reported_s is not None:
            self._acknowledged_by = sender
            self._reported_s = now_s
        if kind in self._handlers:
            self._handlers[kind](sender, body)
        self._follow_coordinator(now_s)

    def _on_beat(self, sender: int, body: Any) -> None:
        sent_ns, theirs_ns = body
        if sender == self._current:
            self._probe.add(sent_ns, theirs_ns, wall_ns())

    def _on_ask(self, sender: int, body: Any) -> None:
        if self.diagnosis is not None:
            self._send(sender, "adopted", self.diagnosis)
        else:
            self._send(sender, "reported", [self._reporter.report(), self._acknowledged_by])

    def _on_diagnosis(self, sender: int, body: Any) -> None:
        self._send(sender, "taken", None)  # first: this process may end as soon as its calls do
        self._reporter.conclude(body)
        if self.diagnosis is None:
            self._adopted(body)

    def _adopted(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self._passed_over.clear()
        # Other ranks may have asked this one.
        self._send(self._rank, "adopted", diagnosis)

    def _on_agree_ask(self, sender: int, body: Any) -> None:
        if body in self._agreed:
            self._send(sender, "agree-result", [body, self._agreed[body]])

    def _on_agreed(self, sender: int, body: Any) -> None:
        key, result = body
        self._agreed.setdefault(key, result)
        if key in self._agreeing:
            self._agreeing.pop(key)[1].set_result(self._agreed[key])

    def _on_answer(self, sender: int, body: Any) -> None:
        number, answer = body
        if number in self._questions:
            self._questions.pop(number)[2].set_result(answer)

    # Questions of this rank.

    def agree(self, proposal: Proposal, future: "Future[dict[int, Any]]") -> None:
        """Propose a value; `future` gets those of all."""
        if proposal.key in self._agreed:
            future.set_result(self._agreed[proposal.key])
            return
        self._agreeing[proposal.key] = (proposal, future)
        self._send(self._current, "agree", proposal.message())

    def ask(self, kind: str, body: list[Any], future: "Future[Any]") -> int:
        """Put a question to the store, whose answer `future` gets; returns what `cancel` takes."""
        self._num_questions += 1
        number = self._num_questions
        self._questions[number] = (kind, body, future)
        if kind == "set":
            key, value = body
            self._sets[key] = value
        self._send(self._current, kind, [number, *body])
        return number

    def cancel(self, number: int) -> None:
        """Drop a question."""
        self._questions.pop(number, None)
        self._send(self._current, "cancel", [number])

    def close(self, reason: Exception) -> None:
        """End every wait for an answer with `reason`."""
        futures: list[Future[Any]] = [future for _, future in self._agreeing.values()]
        futures += [future for _, _, future in self._questions.values()]
        self._agreeing.clear()
        self._questions.clear()
        for future in futures:
            future.set_exception(reason)

    def clock(self) -> ClockReading | None:
        """Return how this rank's clock stands against the coordinator's."""
        return self._probe.reading()
