"""One rank of one communicator in the control plane: both sides of the coordinator, together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from .agreements import Agreements, Proposal
from .clocks import wall_ns
from .coordinator import Coordinator
from .message import MAX_STATE_BYTES, Contact, Entry
from .participant import Participant
from .principal import Lost, Principal, Report, Verdict
from .store import StoreServer
from .timing import Timing

_OF_STORE = frozenset({"set", "get", "check", "cancel"})

Post = Callable[["Place", Entry], None]


class Place:
    """Takes the messages for one rank apart. The control plane's thread owns it."""

    def __init__(
        self,
        communicator_id: bytes,
        rank: int,
        contacts: Sequence[Contact],
        principal: Principal,
        post: Post,
    ) -> None:
        """Speak for `principal`; `contacts` of all ranks, `post` takes what is to be sent."""
        self.communicator_id = communicator_id
        self.rank = rank
        self.contacts = contacts
        self.principal = principal
        self._post = post
        self.states: dict[str, Callable[[], Any]] = {}
        timing = Timing.of_world(len(contacts))
        self.participant = Participant(
            rank, len(contacts), _WithStates(principal, self.states), self._send, timing
        )
        self.coordinator = Coordinator(rank, len(contacts), principal.judge, self._send, timing)
        self._agreements = Agreements(self._send, self.coordinator.standing)
        self._store = StoreServer(self._answer)
        self.suspects: Callable[[], bool] | None = None
        self._period_s = timing.period_s
        self._next_look_s = 0.0

    def _send(self, receiver: int, kind: str, body: Any) -> None:
        self._post(self, Entry(self.communicator_id, self.rank, receiver, kind, body))

    def _answer(self, receiver: int, number: int, value: Any) -> None:
        self._send(receiver, "answer", [number, value])

    def tick(self, now_s: float) -> None:
        """Do what is due on both sides."""
        self.participant.tick(now_s)
        if self.suspects is not None and now_s >= self._next_look_s:
            self._next_look_s = now_s + self._period_s
            if self.suspects():
                self._send(self.participant.coordinator, "inquire", None)
        self.settle(now_s)

    def settle(self, now_s: float) -> None:
        """As the coordinator, decide what can be decided."""
        self.coordinator.tick(now_s)
        self._agreements.tick(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        others = (self.coordinator.next_s(), self._agreements.next_s())
        return min([self.participant.next_s(), *(one for one in others if one is not None)])

    def hear(self, sender: int, kind: str, body: Any, now_s: float) -> None:
        """Take a message of another rank, or of this one to itself.

        Raises:
            ValueError, TypeError, KeyError: its body is not what its kind demands.
        """
        handler = self._HANDLERS.get(kind)
        if kind in _OF_STORE:
            getattr(self._store, kind)(sender, *body)
        elif handler is None:
            self.participant.hear(sender, kind, body, now_s)
        else:
            handler(self, sender, body, now_s)

    def _hear_beat(self, sender: int, body: Any, now_s: float) -> None:
        sent_ns, has_verdict, lost, silent_s = body
        self._send(sender, "beat-back", [sent_ns, wall_ns()])
        self.coordinator.hear_lost(sender, [_lost(one) for one in lost])
        self.coordinator.hear_silent(silent_s, now_s)
        self.coordinator.hear_beat(sender, has_verdict, now_s)

    def _hear_report(self, sender: int, body: Any, now_s: float) -> None:
        report, acknowledged_by = body
        self.coordinator.hear_report(sender, _mapping(report), acknowledged_by, now_s)

    def _hear_inquire(self, sender: int, body: Any, now_s: float) -> None:
        self.coordinator.inquire(sender, now_s)

    def _hear_reported(self, sender: int, body: Any, now_s: float) -> None:
        report, acknowledged_by = body
        self.coordinator.hear_answer(sender, _mapping(report), acknowledged_by, now_s)

    def _hear_adopted(self, sender: int, body: Any, now_s: float) -> None:
        self.coordinator.hear_verdict(_mapping(body), now_s)

    def _hear_taken(self, sender: int, body: Any, now_s: float) -> None:
        self.coordinator.hear_taken(sender)

    def _hear_agree(self, sender: int, body: Any, now_s: float) -> None:
        self._agreements.hear(sender, Proposal.of_message(body), now_s)

    def _hear_agree_result(self, sender: int, body: Any, now_s: float) -> None:
        key, result = body
        self._agreements.hear_result(str(key), {int(rank): one for rank, one in result.items()})

    _HANDLERS: Mapping[str, Callable[["Place", int, Any, float], None]] = {
        "beat": _hear_beat,
        "report": _hear_report,
        "inquire": _hear_inquire,
        "reported": _hear_reported,
        "adopted": _hear_adopted,
        "taken": _hear_taken,
        "agree": _hear_agree,
        "agree-result": _hear_agree_result,
    }


class _WithStates:
    """A principal whose reports also carry what the providers of extra state say."""

    def __init__(self, principal: Principal, states: Mapping[str, Callable[[], Any]]) -> None:
        self._states = states
        self.news_fd = principal.news_fd
        self.look = principal.look
        self.lost = principal.lost
        self.failing = principal.failing
        self.verdict = principal.verdict
        self.adopt = principal.adopt
        self.conclude = principal.conclude
        self.judge = principal.judge
        self._report = principal.report

    def report(self) -> Report:
        report = dict(self._report())
        for name, provider in tuple(self._states.items()):
            try:
                state = provider()
                size = len(msgpack.packb(state))
                if size > MAX_STATE_BYTES:
                    state = f"{size} bytes, more than {MAX_STATE_BYTES}"
            except Exception as error:  # the failure itself matters more
                state = f"not available: {type(error).__name__}: {error}"
            report[name] = state
        return report


def _lost(row: Any) -> Lost:
    rank, left, sequence = row
    return int(rank), bool(left), int(sequence)


def _mapping(body: Any) -> Verdict:
    if not isinstance(body, dict):
        raise ValueError(f"expected a mapping, got {type(body).__name__}")
    return body
