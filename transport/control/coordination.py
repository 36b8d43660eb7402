"""What a rank can do through the control plane of its communicator; any thread may.

    coordination.agree("shrink-1", mine, timeout_s=2)    {rank: value} of all ranks that remain
    coordination.store("next/")                          a rendezvous store for a new communicator
    coordination.clock()                                 this rank's clock against the coordinator's

Where the coordinator dies meanwhile, the next coordinator is asked again. No collective waits for
anything here.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from hccl_py.transport.clock import ClockReading
from hccl_py.transport.control.control_plane import hold, release
from hccl_py.transport.control.loop import Service
from hccl_py.transport.control.message import ControlMembers
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.reporter import Reporter
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, CommunicatorError
from hccl_py.transport.threads import is_of_signal_handler

_GRACE_S = 3.0
"""How much later than the coordinator a rank gives up: it should learn which ranks were missing,
also from the next coordinator, if the first became silent meanwhile."""
_SLICE_S = 0.1
"""How soon a waiting thread learns that it waits in vain."""


class Coordination:
    """One rank's hold on the control plane, from the rendezvous until it is closed."""

    def __init__(self, members: ControlMembers) -> None:
        self._plane = hold()
        self.members = members
        self._participant: Participant | None = None
        self._closed = False
        try:
            self._plane.loop.call(lambda: self._plane.admit(members))
        except BaseException:
            self.close()
            raise

    def attach(self, reporter: Reporter) -> None:
        """Begin to send heartbeats, and the reports of `reporter`. At most once."""
        participant = self._participant = Participant(self.members, reporter, self._plane.send)
        self._plane.loop.call(lambda: self._plane.attach(participant))

    def serve(self, service: Service) -> None:
        """Have the control thread call a service from now on, if it does not yet."""
        self._plane.loop.call(lambda: self._plane.loop.add(service))

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
        listed = None if among is None else list(among)
        answer: Future[dict[int, Any]] = self._ask("agree", [key, value, timeout_s, listed])
        try:
            return answer.result(timeout_s + _GRACE_S)
        except FutureTimeoutError as error:
            if is_of_signal_handler(error):
                raise
            raise CommunicatorError(
                f"agree({key!r}): no coordinator answered in {timeout_s + _GRACE_S:g} s; check "
                "whether the other ranks still run"
            ) from None

    def store(
        self, prefix: str = "", timeout_s: float = 60.0, hopeless: Callable[[], str] | None = None
    ) -> StoreClient:
        """Return the store that the coordinator hosts, fit for `rendezvous.Store`.

        All keys begin with `prefix`, and `get` waits for `timeout_s`. `hopeless` is asked now and
        then during a wait; it says why to give up, or "".
        """
        return StoreClient(self._ask_store, timeout_s, prefix, hopeless)

    def leave_store(self, prefix: str, num_ranks: int) -> None:
        """Let the store drop the keys of a prefix once so many ranks have left it; never waits."""
        with contextlib.suppress(CommunicatorError):  # closed: the store has ended
            self._ask("leave", [prefix, num_ranks])

    def _ask(self, kind: str, body: list[Any]) -> "Future[Any]":
        participant, answer = self._require(), Future[Any]()
        self._plane.loop.post(lambda: participant.ask(kind, body, answer))
        return answer

    def _ask_store(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        participant = self._require()
        # Also before the question: the coordinator may have ended with what made it hopeless.
        _give_up_in_vain(deadline)
        answer = self._ask(kind, list(body))
        try:
            while not wait([answer], min(_SLICE_S, deadline.remaining_s)).done:
                _give_up_in_vain(deadline)
                if deadline.expired:
                    raise BootstrapError(
                        f"the coordinator's store: {kind} {body[0]!r}: no answer in "
                        f"{deadline.timeout_s:g} s"
                    )
        except BootstrapError:
            self._plane.loop.post(lambda: participant.cancel([answer]))
            raise
        return answer.result()

    def survey(self, timeout_s: float) -> dict[int, bytes]:
        """Ask all ranks for their reports; return those that come in time, by rank."""
        participant = self._require()
        answers = {rank: Future[bytes]() for rank in range(len(self.members.addresses))}
        self._plane.loop.post(lambda: participant.survey(answers))
        _, late = wait(answers.values(), timeout_s)
        self._plane.loop.post(lambda: participant.cancel(late))
        # An answer is an exception where the communicator was closed meanwhile.
        came = {rank: one for rank, one in answers.items() if one not in late}
        return {rank: one.result() for rank, one in came.items() if one.exception() is None}

    def clock(self) -> ClockReading | None:
        """Return how this rank's clock stands against the coordinator's; None: not known yet."""
        return None if self._participant is None else self._participant.probe.reading()

    def close(self) -> None:
        """Leave the control plane; the last to leave ends its thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._plane.loop.call(lambda: self._plane.leave(self.members))
        if self._participant is not None:
            self._participant.close(CommunicatorError("the communicator is closed"))
            self._participant = None  # and with it the engine
        release(self._plane)

    def close_in_child(self) -> None:
        """In a forked child, where the thread is not: do nothing any more."""
        self._closed = True

    def _require(self) -> Participant:
        if self._participant is None or self._closed:
            raise CommunicatorError("the communicator has no control plane: it is closed, or alone")
        return self._participant


def _give_up_in_vain(deadline: Deadline) -> None:
    reason = deadline.hopeless() if deadline.hopeless is not None else ""
    if reason:
        raise BootstrapError(reason)
