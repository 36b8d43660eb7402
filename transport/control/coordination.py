"""What a rank can do through the control plane of its communicator; any thread may.

    coordination.add_state("calls", recorder.tail)       goes along with every report of a failure
    coordination.agree("shrink-1", mine, timeout_s=2)    {rank: value} of all ranks that are left
    coordination.store("next/")                          a rendezvous store for a new communicator
    coordination.clock()                                 this rank's clock against the coordinator's

The coordinator may die meanwhile: what was asked is then asked again elsewhere. Nothing here is on
the way of a collective.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from ..deadline import Deadline
from ..errors import BootstrapError, CommunicatorError
from .agreements import Proposal
from .clocks import ClockReading
from .place import Place
from .plane import Roll, hold, release
from .principal import Principal
from .store import StoreClient

_GRACE_S = 3.0
"""How much later than the coordinator a rank gives up: it should hear who was missing, also from
the next one, if the coordinator fell silent meanwhile."""
_SLICE_S = 0.1
"""How soon somebody who waits hears that it is in vain."""


class Coordination:
    """One rank's hold on the control plane, from the rendezvous until it is closed."""

    def __init__(self, roll: Roll) -> None:
        """Admit the members."""
        self._plane = hold()
        self._roll = roll
        self._place: Place | None = None
        self._states: dict[str, Callable[[], Any]] = {}
        self._suspects: Callable[[], bool] | None = None
        self._closed = False
        try:
            self._plane.enrol(roll)
        except BaseException:
            self.close()
            raise

    @property
    def communicator_id(self) -> bytes:
        """Equal on all ranks of the communicator, and random."""
        return self._roll.communicator_id

    def attach(self, principal: Principal) -> None:
        """Begin to send heartbeats and to report failures, for `principal`. At most once."""
        roll = self._roll
        place = Place(
            roll.communicator_id, roll.rank, roll.contacts, principal, self._plane.dispatch
        )
        place.states.update(self._states)
        self._states = place.states
        place.suspects = self._suspects
        self._place = place
        self._plane.attach(place)

    def add_state(self, name: str, provider: Callable[[], Any]) -> None:
        """Have every report of a failure carry, under `name`, what `provider` returns then.

        Args:
            name: a key of the report.
            provider: called on the control plane's thread; must not block. What it returns has to
                fit msgpack, in 16 KiB; what it raises is reported instead.
        """
        self._states[name] = provider

    def on_suspicion(self, suspects: Callable[[], bool]) -> None:
        """Ask `suspects` with every heartbeat; True has all ranks report, and the judge look.

        Without a verdict of the judge nothing happens. Before `attach`.
        """
        self._suspects = suspects

    def agree(
        self, key: str, value: Any, timeout_s: float, *, among: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """Exchange a value with all ranks that are left; all of them get the same answer.

        Args:
            key: of this agreement; each is used once.
            value: what this rank contributes; has to fit msgpack.
            timeout_s: from when the first rank came; who has not come by then is left out.
            among: which ranks to wait for; None: all. A rank that any of them does not list is not
                waited for.

        Returns:
            The values by rank. This rank is missing there if it came too late.

        Raises:
            CommunicatorError: nobody answered.
        """
        place = self._require()
        future: Future[dict[int, Any]] = Future()
        proposal = Proposal(key, value, timeout_s, None if among is None else tuple(among))
        self._plane.loop.post(lambda: place.participant.agree(proposal, future))
        try:
            return future.result(timeout_s + _GRACE_S)
        except FutureTimeoutError:
            raise CommunicatorError(
                f"agree({key!r}): no coordinator answered in {timeout_s + _GRACE_S:g} s; are all "
                "other ranks gone?"
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
            hopeless: asked now and then by whoever waits; says why to give up, or "".
        """
        return StoreClient(self.ask_store, timeout_s, prefix, hopeless)

    def ask_store(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        """Put a question to the store and wait for the answer, unless that is or becomes hopeless.

        Raises:
            BootstrapError: it did not come in time, or waiting is in vain; says why.
        """
        place = self._require()
        future: Future[Any] = Future()
        numbers: list[int] = []
        # Before it is asked too: who is to answer may be gone with what made it hopeless.
        _give_up_in_vain(deadline)
        self._plane.loop.post(
            lambda: numbers.append(place.participant.ask(kind, list(body), future))
        )
        try:
            return _await(future, deadline)
        except (FutureTimeoutError, BootstrapError) as error:
            self._plane.loop.post(lambda: place.participant.cancel(numbers[0]))
            if isinstance(error, BootstrapError):
                raise
            raise BootstrapError(
                f"the coordinator's store: {kind} {body[0]!r}: no answer in "
                f"{deadline.timeout_s:g} s"
            ) from None

    def clock(self) -> ClockReading | None:
        """Return how this rank's clock stands against the coordinator's; None: not known yet."""
        return None if self._place is None else self._place.participant.clock()

    def coordinator(self) -> int:
        """Return the rank that coordinates, as far as this one knows."""
        return 0 if self._place is None else self._place.participant.coordinator

    def close(self) -> None:
        """Leave the control plane; the last to leave ends its thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._plane.leave(self._roll)
        # What they were told of may be large, and is gone.
        self._states.clear()
        self._suspects = None
        if self._place is not None:
            self._place.suspects = None
            self._place.participant.give_up(CommunicatorError("the communicator is closed"))
            self._place = None  # and with it the engine
        release(self._plane)

    def close_in_child(self) -> None:
        """In a forked child, where the thread is not: do nothing any more."""
        self._closed = True

    def _require(self) -> Place:
        if self._place is None or self._closed:
            raise CommunicatorError("the communicator has no control plane: it is closed, or alone")
        return self._place


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
