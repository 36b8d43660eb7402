"""One rank of one communicator in the control plane: both sides of the coordinator, together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hccl_py.transport.control.agreement import AgreementServer
from hccl_py.transport.control.coordinator import Coordinator, Timing
from hccl_py.transport.control.coordinator_client import CoordinatorClient
from hccl_py.transport.control.message import Contact, Entry
from hccl_py.transport.control.reporter import Reporter
from hccl_py.transport.control.store import StoreServer
from hccl_py.transport.control.survey import Surveys

Post = Callable[["Participant", Entry], None]
Handler = Callable[[int, Any, float], None]
"""Takes the sender of a message, its body, and the time."""


class Participant:
    """Hands each message for one rank to the part that serves its kind. For the control thread."""

    def __init__(
        self,
        communicator_id: bytes,
        rank: int,
        contacts: Sequence[Contact],
        reporter: Reporter,
        post: Post,
    ) -> None:
        """Take part for `reporter`; `contacts` of all ranks, `post` sends messages."""
        self.communicator_id = communicator_id
        self.rank = rank
        self.contacts = contacts
        self.reporter = reporter
        self._post = post
        timing = Timing.of_world(len(contacts))
        self.client = CoordinatorClient(rank, reporter, self._send, timing)
        self.coordinator = Coordinator(rank, len(contacts), reporter.diagnose, self._send, timing)
        self._agreements = AgreementServer(self._send, self.coordinator.remaining)
        self.surveys = Surveys(reporter, len(contacts), self._send)
        self._store = StoreServer(self._answer)
        self._of_coordinator: Mapping[str, Handler] = {
            **self.coordinator.handlers(),
            **self._agreements.handlers(),
            **self.surveys.handlers(),
        }
        self.suspects: Callable[[], bool] | None = None
        self._period_s = timing.period_s
        self._next_check_s = 0.0

    def tick(self, now_s: float) -> None:
        """Do what is due on both sides."""
        self.client.tick(now_s)
        if self.suspects is not None and now_s >= self._next_check_s:
            self._next_check_s = now_s + self._period_s
            if self.suspects():
                self._send(self.client.coordinator, "inquire", None)
        self.decide(now_s)

    def decide(self, now_s: float) -> None:
        """As the coordinator, decide what can be decided."""
        self.coordinator.tick(now_s)
        self._agreements.tick(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        return min(self.client.next_s(), self.coordinator.next_s(), self._agreements.next_s())

    def receive(self, sender: int, kind: str, body: Any, now_s: float) -> None:
        """Take a message of another rank, or of this one to itself.

        Raises:
            ValueError, TypeError, KeyError: its body is not what its kind demands.
        """
        if kind in self._of_coordinator:
            self._of_coordinator[kind](sender, body, now_s)
        elif kind in StoreServer.KINDS:
            getattr(self._store, kind)(sender, *body)
        else:
            self.client.receive(sender, kind, body, now_s)

    def _send(self, receiver: int, kind: str, body: Any) -> None:
        self._post(self, Entry(self.communicator_id, self.rank, receiver, kind, body))

    def _answer(self, receiver: int, number: int, value: Any) -> None:
        self._send(receiver, "answer", [number, value])
