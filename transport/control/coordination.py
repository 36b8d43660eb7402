"""What a rank can do through the control plane of its communicator; any thread may.

    coordination.agree("shrink-1", mine, timeout_s=2)    {rank: value} of all ranks that remain
    coordination.store("next/")                          a rendezvous store for a new communicator
    coordination.clock()                                 this rank's clock against the coordinator's

Where the coordinator dies meanwhile, the next coordinator is asked again. No collective waits for
anything here.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from hccl_py.transport.clock import ClockReading
from hccl_py.transport.control.agreement import Proposal
from hccl_py.transport.control.control_plane import Roster, hold, release
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.reporter import Report, Reporter
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.control.survey import Survey
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, CommunicatorError

_GRACE_S = 3.0
"""How much later than the coordinator a rank gives up: it should learn which ranks were missing,
also from the next coordinator, if the first became silent meanwhile."""
_SLICE_S = 0.1
"""How soon a waiting thread learns that it waits in vain."""


class Coordination:
    """One rank's hold on the control plane, from the rendezvous until it is closed."""

    def __init__(self, roster: Roster) -> None:
        """Admit the members."""
        self._plane = hold()
        self._roster = roster
        self._participant: Participant | None = None
        self._suspects: Callable[[], bool] | None = None
        self._closed = False
        try:
            self._plane.admit(roster)
        except BaseException:
            self.close()
            raise

    @property
    def communicator_id(self) -> bytes:
        """Equal on all ranks of the communicator, and random."""
        return self._roster.communicator_id

    def attach(self, reporter: Reporter) -> None:
        """Begin to send heartbeats, and the reports of `reporter`. At most once."""
        participant = Participant(
            *self._roster.key, self._roster.contacts, reporter, self._plane.send
        )
        participant.suspects = self._suspects
        self._participant = participant
        self._plane.attach(participant)

    def on_suspicion(self, suspects: Callable[[], bool]) -> None:
        """Ask `suspects` with every heartbeat; True makes all ranks report.

        Where the reports show no failure, nothing happens. Before `attach`.
        """
        self._suspects = suspects

    def agree(
        self, key: str, value: Any, timeout_s: float, *, among: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """Exchange a value with all ranks that remain; all of them get the same answer.

        Args:
            key: of this agreement; each is used once.
            value: what this rank contributes; has to fit msgpack.
            timeout_s: from the first proposal on; later ranks are left out.
            among: which ranks to wait for; None: all. A rank that some rank does not list is not
                waited for.

        Returns:
            The values by rank. This rank is missing there if it came too late.

        Raises:
            CommunicatorError: no coordinator answered.
        """
        client = self._require().client
        future: Future[dict[int, Any]] = Future()
        proposal = Proposal(key, value, timeout_s, None if among is None else tuple(among))
        self._plane.loop.post(lambda: client.agree(proposal, future))
        try:
            return future.result(timeout_s + _GRACE_S)
        except FutureTimeoutError:
            raise CommunicatorError(
                f"agree({key!r}): no coordinator answered in {timeout_s + _GRACE_S:g} s; check "
                "whether the other ranks still run"
            ) from None

    def store(
        self,
        prefix: str = "",
        timeout_s: float = 60.0,
        hopeless: Callable[[], str] | None = None,
    ) -> StoreClient:
        """Return the store that the coordinator hosts, fit for `rendezvous.Store`.

        Args:
            prefix: of all keys.
            timeout_s: how long `get` waits.
            hopeless: asked now and then during a wait; says why to give up, or "".
        """
        return StoreClient(self.ask_store, timeout_s, prefix, hopeless)

    def ask_store(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        """Put a question to the store and wait for the answer.

        Raises:
            BootstrapError: no answer came in time, or waiting is in vain; says why.
        """
        client = self._require().client
        future: Future[Any] = Future()
        numbers: list[int] = []
        # Also before the question: the coordinator may have ended with what made it hopeless.
        _give_up_in_vain(deadline)
        self._plane.loop.post(lambda: numbers.append(client.ask(kind, list(body), future)))
        try:
            return _await(future, deadline)
        except (FutureTimeoutError, BootstrapError) as error:
            self._plane.loop.post(lambda: client.cancel(numbers[0]))
            if isinstance(error, BootstrapError):
                raise
            raise BootstrapError(
                f"the coordinator's store: {kind} {body[0]!r}: no answer in "
                f"{deadline.timeout_s:g} s"
            ) from None

    def survey(self, timeout_s: float) -> dict[int, Report]:
        """Ask all ranks for their reports; return those that come in time, by rank."""
        participant, survey = self._require(), Survey()
        self._plane.loop.post(lambda: participant.surveys.begin(survey))
        survey.complete.wait(timeout_s)
        return dict(survey.reports)

    def clock(self) -> ClockReading | None:
        """Return how this rank's clock stands against the coordinator's; None: not known yet."""
        return None if self._participant is None else self._participant.client.clock()

    def coordinator(self) -> int:
        """Return the rank that coordinates, as far as this one knows."""
        return 0 if self._participant is None else self._participant.client.coordinator

    def close(self) -> None:
        """Leave the control plane; the last to leave ends its thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._plane.leave(self._roster)
        self._suspects = None
        if self._participant is not None:
            self._participant.suspects = None
            self._participant.client.close(CommunicatorError("the communicator is closed"))
            self._participant = None  # and with it the engine
        release(self._plane)

    def close_in_child(self) -> None:
        """In a forked child, where the thread is not: do nothing any more."""
        self._closed = True

    def _require(self) -> Participant:
        if self._participant is None or self._closed:
            raise CommunicatorError("the communicator has no control plane: it is closed, or alone")
        return self._participant


def _await(future: Future[Any], deadline: Deadline) -> Any:
    if deadline.hopeless is None:
        return future.result(deadline.remaining_s)
    while True:
        try:
            return future.result(min(_SLICE_S, deadline.remaining_s))
        except FutureTimeoutError:
            if deadline.expired:
                raise
        _give_up_in_vain(deadline)


def _give_up_in_vain(deadline: Deadline) -> None:
    reason = deadline.hopeless() if deadline.hopeless is not None else ""
    if reason:
        raise BootstrapError(reason)
