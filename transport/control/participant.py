"""One rank of one communicator in the control plane, without I/O. For the control thread.

The rank sends heartbeats to the coordinator, which answers each, so either side notices when the
other is silent. The coordinator is the lowest rank that is neither ended nor silent. When it
changes or does not answer, all open questions go to the next one. Silence alone ends no rank.

Every rank can serve, by `coordinator.py`, `agreement.py` and the server of `store.py`.
"""

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from hccl_py.transport.clock import ClockProbe
from hccl_py.transport.control.agreement import Agreements
from hccl_py.transport.control.coordinator import (
    ACK_S,
    DIAGNOSIS_S,
    Coordinator,
    heartbeat_period_s,
)
from hccl_py.transport.control.message import ControlMembers, Entry
from hccl_py.transport.control.reporter import Ended, Reporter
from hccl_py.transport.control.store import StoreServer

_MAX_UNANSWERED = 3  # heartbeats, not seconds: a rank that was stopped must not blame others


class Participant:
    """One rank's client and server of the control plane."""

    def __init__(
        self,
        members: ControlMembers,
        reporter: Reporter,
        post: Callable[["Participant", Entry], None],
    ) -> None:
        """Take part for `reporter`; `post` sends messages."""
        self.members = members
        self.reporter = reporter
        self.probe = ClockProbe(0)
        self._rank = members.rank
        self._post = post
        # The server.
        world_size = len(members.addresses)
        coordinator = Coordinator(self._rank, world_size, reporter, self._send)
        agreements = Agreements(self._send, coordinator.remaining, self._on_answer)
        store: StoreServer[int] = StoreServer(self._answer)
        self._coordinator, self._agreements = coordinator, agreements
        # Handlers by kind of message, without a coordinator's messages.
        self._serves: Mapping[str, Callable[[int, Any, float], None]] = {
            "beat": coordinator.on_beat,
            "report": coordinator.on_report,
            "reported": coordinator.on_answer,
            "adopted": coordinator.on_diagnosis,
            "taken": coordinator.on_confirmation,
            "agree": agreements.on_proposal,
            "agree-ask": agreements.on_question,
            "agreed": agreements.on_result,
            "set": lambda sender, body, _: store.set(sender, *body),
            "get": lambda sender, body, _: store.get(sender, *body),
            "check": lambda sender, body, _: store.check(sender, *body),
            "cancel": lambda sender, body, _: store.cancel(sender, *body),
            "leave": lambda sender, body, _: store.leave(sender, *body),
            "survey": lambda sender, body, _: self._answer(sender, body, reporter.report()[0]),
        }
        # The client.
        self._period_s = heartbeat_period_s(world_size)
        self._next_beat_s = 0.0
        self._ended: dict[int, Ended] = {}
        self._silent_since_s: dict[int, float] = {}
        self._passed_over: set[int] = set()  # late with its answer; until there is a diagnosis
        self._current = 0  # rank of the coordinator
        self._asked_by = 0  # rank that last collected reports
        self._answered_s = 0.0
        # A coordinator that is still connecting receives nothing and would never answer.
        self._has_answered = False
        self._unanswered = 0
        self._reported_s: float | None = None
        self._acknowledged_by: int | None = None
        self._diagnosis: bytes | None = None
        # Keyed by the number or agreement at the start of the body. The next coordinator needs
        # `_sets`.
        self._questions: dict[int | str, tuple[str, list[Any], Future[Any]]] = {}
        self._sets: dict[str, bytes] = {}
        self._numbers = itertools.count(1)

    def tick(self, now_s: float) -> None:
        """Do what is due on both sides."""
        is_beat_due = now_s >= self._next_beat_s
        if is_beat_due:
            # All ranks of a machine beat at the same times, so each control thread wakes once for
            # all its communicators. Two beats are at least half a period apart.
            self._next_beat_s = math.floor(now_s / self._period_s + 1.5) * self._period_s
            self._observe(now_s)
            self._beat(now_s)
            self._repeat_questions()  # a broken connection may lose questions and answers
        if now_s >= self._answer_due_s():
            self._passed_over.add(self._current)
        self._follow_coordinator(now_s)
        if is_beat_due and self.reporter.suspects():
            self._send(self._current, "report", [*self.reporter.report(), None])
        self.decide(now_s)

    def decide(self, now_s: float) -> None:
        """Make the coordinator's decisions that are due."""
        self._coordinator.tick(now_s)
        self._agreements.tick(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        serving_s = min(self._coordinator.next_s(), self._agreements.next_s())
        return min(serving_s, self._next_beat_s, self._answer_due_s())

    def _answer_due_s(self) -> float:
        if self._reported_s is None or self._diagnosis is not None or self._current == self._rank:
            return math.inf
        return self._reported_s + (ACK_S if self._acknowledged_by is None else DIAGNOSIS_S)

    def on_news(self, now_s: float) -> None:
        """Report what the engine has observed."""
        if self._observe(now_s):
            # Before the heartbeat: it may be all that the coordinator waits for. The rank that
            # asked last may collect because the coordinator that this rank follows has ended.
            report = [*self.reporter.report(), self._acknowledged_by]
            for coordinator in {self._current, self._asked_by}:
                self._send(coordinator, "reported", report)
            self._beat(now_s)
        self._follow_coordinator(now_s)

    # Observations of this rank.

    def _observe(self, now_s: float) -> bool:
        """Poll the reporter; return whether more ranks have ended since the last call."""
        before, self._ended = self._ended, {one[0]: one for one in self.reporter.ended_ranks()}
        if self._diagnosis is None and (diagnosis := self.reporter.diagnosis()) is not None:
            self._adopted(diagnosis)
        if self._diagnosis is None and self._reported_s is None and self.reporter.has_failure():
            self._follow_coordinator(now_s)
            self._send_report(now_s)
        return self._ended != before

    def _beat(self, now_s: float) -> None:
        self._unanswered += 1
        self._answered_s = self._answered_s or now_s  # silence begins with the first question
        if self._current != self._rank and self._unanswered > _MAX_UNANSWERED:
            self._silent_since_s[self._current] = self._answered_s
            self._follow_coordinator(now_s)  # sends another heartbeat
            return
        silent_s = {rank: now_s - since_s for rank, since_s in self._silent_since_s.items()}
        body = [time.time_ns(), self._diagnosis is not None, list(self._ended.values()), silent_s]
        self._send(self._current, "beat", body)
        for rank in self._silent_since_s:
            if rank < self._current:  # it may have been suspended, and may coordinate again
                self._send(rank, "beat", body)

    def _send_report(self, now_s: float) -> None:
        self._reported_s = now_s
        self._acknowledged_by = None
        self._send(self._current, "report", [*self.reporter.report(), None])

    def _follow_coordinator(self, now_s: float) -> None:
        """If the coordinator changed, send the new one all open questions."""
        excluded = {*self._ended, *self._silent_since_s, *self._passed_over}
        lowest = next((rank for rank in range(self._rank) if rank not in excluded), self._rank)
        if lowest == self._current:
            return
        self._current = lowest
        self._has_answered = False
        self._unanswered = 0
        self._answered_s = now_s
        self.probe = ClockProbe(lowest)
        self._beat(now_s)
        if self._reported_s is not None and self._diagnosis is None:
            self._send_report(now_s)
        self._ask_again()

    def _ask_again(self) -> None:
        for key, value in self._sets.items():
            self._send(self._current, "set", [0, key, value])
        self._repeat_questions()

    def _repeat_questions(self) -> None:
        for kind, body, _ in self._questions.values():
            if kind != "survey":
                self._send(self._current, kind, body)

    def receive(self, sender: int, kind: str, body: Any, now_s: float) -> None:
        """Handle a message of another rank, or of this rank to itself.

        Raises:
            ValueError, TypeError, KeyError: its body is not what its kind demands.
        """
        if kind in self._serves:
            self._serves[kind](sender, body, now_s)
            return
        if sender == self._current:
            self._unanswered = 0
            self._answered_s = now_s
            if not self._has_answered:
                self._has_answered = True
                self._ask_again()
        self._silent_since_s.pop(sender, None)
        match kind:
            case "beat-back" if sender == self._current:
                sent_ns, theirs_ns = body
                self.probe.add(sent_ns, theirs_ns, time.time_ns())
            case "ack" if self._acknowledged_by is None:
                # Also of a rank that was only asked: it tells a higher one that this one collects.
                self._acknowledged_by = sender
                self._reported_s = None if self._reported_s is None else now_s
            case "ask":
                self._on_ask(sender, now_s)
            case "diagnosis":
                self._on_diagnosis(sender, body)
            case "answer":
                self._on_answer(*body)
        self._follow_coordinator(now_s)

    def _on_ask(self, sender: int, now_s: float) -> None:
        self._asked_by = sender
        self._observe(now_s)
        if self._diagnosis is not None:
            self._send(sender, "adopted", self._diagnosis)
        else:
            self._send(sender, "reported", [*self.reporter.report(), self._acknowledged_by])

    def _on_diagnosis(self, sender: int, body: Any) -> None:
        self._send(sender, "taken", None)  # first: this process may exit once its calls end
        self.reporter.conclude(body)
        if self._diagnosis is None:
            self._adopted(body)

    def _adopted(self, diagnosis: bytes) -> None:
        self._diagnosis = diagnosis
        self._ended = {one[0]: one for one in self.reporter.ended_ranks()}  # may have grown
        self._next_beat_s = 0.0
        self._passed_over.clear()
        # Answers to other ranks.
        self._send(self._rank, "adopted", diagnosis)

    def _on_answer(self, number: int | str, answer: Any) -> None:
        if number in self._questions:
            self._questions.pop(number)[2].set_result(answer)

    def _send(self, receiver: int, kind: str, body: Any) -> None:
        self._post(self, Entry(self.members.communicator_id, self._rank, receiver, kind, body))

    def _answer(self, receiver: int, number: int, value: Any) -> None:
        self._send(receiver, "answer", [number, value])

    # Questions of this rank.

    def ask(self, kind: str, body: list[Any], answer: "Future[Any]") -> None:
        """Put a question to the coordinator: `agree`, or a kind of `store.py`."""
        if kind == "agree" and body[0] in self._agreements.results:
            answer.set_result(self._agreements.results[body[0]])
            return
        if kind == "set":
            key, value = body
            self._sets[key] = value
        if kind == "leave":
            self._sets = {k: v for k, v in self._sets.items() if not k.startswith(body[0])}
        if kind != "agree":
            body = [next(self._numbers), *body]
        self._questions[body[0]] = (kind, body, answer)
        self._send(self._current, kind, body)

    def survey(self, answers: "Mapping[int, Future[bytes]]") -> None:
        """Ask ranks for their reports."""
        for rank, answer in answers.items():
            number = next(self._numbers)
            self._questions[number] = ("survey", [number], answer)
            self._send(rank, "survey", number)

    def cancel(self, answers: "Collection[Future[Any]]") -> None:
        """Drop questions whose threads no longer wait."""
        for number, (kind, _, answer) in tuple(self._questions.items()):
            if answer in answers:
                del self._questions[number]
                if kind == "get":
                    self._send(self._current, "cancel", [number])

    def close(self, reason: Exception) -> None:
        """End all waits for answers with `reason`."""
        while self._questions:
            self._questions.popitem()[1][2].set_exception(reason)
