"""The asking side of a coordinator: one rank of one communicator, without I/O.

It sends heartbeats to the coordinator, which answers each: silence on either side is noticed by the
other. The coordinator is the lowest rank that is neither lost nor silent; when it changes, or does
not answer, everything that is still unanswered goes to the next. Silence kills nobody.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from .agreements import Proposal
from .clocks import ClockProbe, ClockReading, wall_ns
from .coordinator import Send
from .principal import Principal, Verdict
from .timing import Timing

_MAX_UNANSWERED = 3
"""Heartbeats; counted, not timed: a process that was stopped itself must not blame the others."""


class Participant:
    """One rank towards whoever coordinates. Not thread-safe: the control plane's thread owns it."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        principal: Principal,
        send: Send,
        timing: Timing,
    ) -> None:
        """Speak for `principal`."""
        self._rank = rank
        self._world_size = world_size
        self._principal = principal
        self._send = send
        self._timing = timing
        self._next_beat_s = 0.0
        self._lost: dict[int, tuple[int, bool, int]] = {}
        self._silent_since_s: dict[int, float] = {}
        # Did not answer a report in time: out of the question until there is a verdict.
        self._passed_over: set[int] = set()
        self._current = 0
        self._heard_s = 0.0
        # A coordinator that is still connecting hears nothing, and would never answer.
        self._has_heard = False
        self._unanswered = 0
        self._reported_s: float | None = None
        self._acknowledged_by: int | None = None
        self._probe = ClockProbe(0)
        self.verdict: Verdict | None = None
        # Unanswered questions, to be asked again elsewhere; what was set in the store stays, for
        # it has to be set again.
        self._agreeing: dict[str, tuple[Proposal, Future[dict[int, Any]]]] = {}
        self._agreed: dict[str, dict[int, Any]] = {}
        self._questions: dict[int, tuple[str, list[Any], Future[Any]]] = {}
        self._sets: dict[str, bytes] = {}
        self._num_questions = 0

    @property
    def coordinator(self) -> int:
        """The lowest rank that can be asked, at worst this one."""
        for rank in range(self._rank):
            if not (
                rank in self._lost or rank in self._silent_since_s or rank in self._passed_over
            ):
                return rank
        return self._rank

    # The clock.

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._timing.period_s
            self._principal.look()
            self._gather(now_s)
            self._beat(now_s)
        self._look_for_answer(now_s)
        self._follow_coordinator(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        waits = self._reported_s is not None and self.verdict is None
        if self._reported_s is None or not waits or self._current == self._rank:
            return self._next_beat_s
        return min(self._next_beat_s, self._reported_s + self._patience_s())

    def news(self, now_s: float) -> None:
        """The engine has something to tell: look what."""
        if self._gather(now_s):
            self._beat(now_s)
        self._follow_coordinator(now_s)

    # What this rank has to say.

    def _gather(self, now_s: float) -> bool:
        """Ask the principal; True if it has lost a rank since the last time."""
        lost = {one[0]: tuple(one) for one in self._principal.lost()}
        changed = lost != self._lost
        self._lost = lost  # type: ignore[assignment]
        if self.verdict is None:
            verdict = self._principal.verdict()
            if verdict is not None:
                self._adopted(verdict)
        if self.verdict is None and self._reported_s is None and self._principal.failing():
            self._follow_coordinator(now_s)
            self._report(now_s)
        return changed

    def _beat(self, now_s: float) -> None:
        self._unanswered += 1
        if self._current != self._rank and self._unanswered > _MAX_UNANSWERED:
            self._silent_since_s[self._current] = self._heard_s
            self._follow_coordinator(now_s)  # which beats again
            return
        silent_s = {rank: now_s - since_s for rank, since_s in self._silent_since_s.items()}
        body = [wall_ns(), self.verdict is not None, list(self._lost.values()), silent_s]
        self._send(self._current, "beat", body)
        for rank in self._silent_since_s:
            if rank < self._current:  # it may only have slept: who wakes up takes office again
                self._send(rank, "beat", body)

    def _report(self, now_s: float) -> None:
        self._reported_s = now_s
        self._acknowledged_by = None
        self._send(self._current, "report", [self._principal.report(), None])

    def _patience_s(self) -> float:
        if self._acknowledged_by is not None:
            return self._timing.verdict_s
        return self._timing.ack_s

    def _look_for_answer(self, now_s: float) -> None:
        if self._reported_s is None or self.verdict is not None or self._current == self._rank:
            return
        if now_s >= self._reported_s + self._patience_s():
            self._passed_over.add(self._current)

    def _follow_coordinator(self, now_s: float) -> None:
        """If there is another coordinator than before, tell it everything that is unanswered."""
        if self.coordinator == self._current:
            return
        self._current = self.coordinator
        self._has_heard = False
        self._unanswered = 0
        self._heard_s = now_s
        self._probe = ClockProbe(self._current)
        self._beat(now_s)
        if self._reported_s is not None and self.verdict is None:
            self._report(now_s)
        self._ask_again()

    def _ask_again(self) -> None:
        for key, value in self._sets.items():
            self._send(self._current, "set", [0, key, value])
        for number, (kind, body, _) in self._questions.items():
            self._send(self._current, kind, [number, *body])
        for proposal, _ in self._agreeing.values():
            self._send(self._current, "agree", proposal.message())

    # What the coordinator says.

    def hear(self, sender: int, kind: str, body: Any, now_s: float) -> None:
        """Take a message of a rank that coordinates."""
        if sender == self._current:
            self._unanswered = 0
            self._heard_s = now_s
            if not self._has_heard:
                self._has_heard = True
                self._ask_again()
        self._silent_since_s.pop(sender, None)
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, sender, body, now_s)
        self._follow_coordinator(now_s)

    def _hear_beat(self, sender: int, body: Any, now_s: float) -> None:
        sent_ns, theirs_ns = body
        if sender == self._current:
            self._probe.hear(sent_ns, theirs_ns, wall_ns())

    def _hear_ask(self, sender: int, body: Any, now_s: float) -> None:
        self._principal.look()
        self._gather(now_s)
        if self.verdict is not None:
            self._send(sender, "adopted", self.verdict)
        else:
            self._send(sender, "reported", [self._principal.report(), self._acknowledged_by])

    def _hear_ack(self, sender: int, body: Any, now_s: float) -> None:
        if self._acknowledged_by is None and self._reported_s is not None:
            self._acknowledged_by = sender
            self._reported_s = now_s

    def _hear_verdict(self, sender: int, body: Any, now_s: float) -> None:
        self._send(sender, "taken", None)  # first: this process may end as soon as its calls do
        self._principal.conclude(body)
        if self.verdict is None:
            self._adopted(body)

    def _hear_adopt(self, sender: int, body: Any, now_s: float) -> None:
        self._principal.adopt(body)

    def _adopted(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._passed_over.clear()
        # This rank may be the one whom others asked.
        self._send(self._rank, "adopted", verdict)

    def _hear_agree_ask(self, sender: int, body: Any, now_s: float) -> None:
        if body in self._agreed:
            self._send(sender, "agree-result", [body, self._agreed[body]])

    def _hear_agreed(self, sender: int, body: Any, now_s: float) -> None:
        key, result = body
        self._agreed.setdefault(key, result)
        agreeing = self._agreeing.pop(key, None)
        if agreeing is not None:
            agreeing[1].set_result(self._agreed[key])

    def _hear_answer(self, sender: int, body: Any, now_s: float) -> None:
        number, answer = body
        question = self._questions.pop(number, None)
        if question is not None:
            question[2].set_result(answer)

    _HANDLERS: Mapping[str, Callable[["Participant", int, Any, float], None]] = {
        "beat-back": _hear_beat,
        "ask": _hear_ask,
        "ack": _hear_ack,
        "adopt": _hear_adopt,
        "verdict": _hear_verdict,
        "agree-ask": _hear_agree_ask,
        "agreed": _hear_agreed,
        "answer": _hear_answer,
    }

    # What this rank asks for.

    def agree(self, proposal: Proposal, future: "Future[dict[int, Any]]") -> None:
        """Contribute a value; `future` gets those of all."""
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
        """Forget a question."""
        self._questions.pop(number, None)
        self._send(self._current, "cancel", [number])

    def give_up(self, reason: Exception) -> None:
        """End everything that is waited for."""
        futures: list[Future[Any]] = [future for _, future in self._agreeing.values()]
        futures += [future for _, _, future in self._questions.values()]
        self._agreeing.clear()
        self._questions.clear()
        for future in futures:
            future.set_exception(reason)

    def clock(self) -> ClockReading | None:
        """Return how this rank's clock stands against the coordinator's."""
        return self._probe.reading()
