"""One rank's interface to the control plane of its communicator, for any thread.

    coordination.agree("shrink-1", mine, timeout_s=2)    {rank: value} of all ranks that remain
    coordination.store("next/")                          a rendezvous store for a new communicator
    coordination.clock()                                 offset of this rank's clock from the
    coordinator's

If the coordinator dies, the next one is asked again. No collective waits for anything here.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from hccl_py.transport.clock import ClockReading
from hccl_py.transport.control.control_plane import acquire, release
from hccl_py.transport.control.loop import Service
from hccl_py.transport.control.message import ControlMembers
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.reporter import Reporter
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, CommunicatorError
from hccl_py.transport.threads import is_of_signal_handler

_GRACE_S = 3.0
"""Extra time in which the coordinator, or the next one if it is silent, reports missing ranks."""
_SLICE_S = 0.1
"""Interval at which a waiting thread checks whether its wait is hopeless."""


class Coordination:
    """One rank's use of the control plane, from the rendezvous until it is closed."""

    def __init__(self, members: ControlMembers) -> None:
        self._plane = acquire()
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
        """Register a service with the control thread, unless it is registered."""
        self._plane.loop.call(lambda: self._plane.loop.add(service))

    def agree(
        self, key: str, value: Any, timeout_s: float, *, among: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """Exchange a value with all remaining ranks; all get the same answer.

        Args:
            key: names this agreement; each key is used once.
            value: this rank's contribution; msgpack must be able to pack it.
            timeout_s: seconds after the first proposal; later ranks are left out.
            among: ranks to wait for; None: all. Only ranks that all callers list are waited for.

        Returns:
            The values by rank, without this rank's if it was too late.

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

    def decline(self, key: str, value: Any) -> None:
        """Give a value that settles an agreement by itself: it ends at once; does not wait."""
        with contextlib.suppress(CommunicatorError):  # closed: the others see that
            self._ask("agree", [key, value, 0.0, None])

    def store(
        self, prefix: str = "", timeout_s: float = 60.0, hopeless: Callable[[], str] | None = None
    ) -> StoreClient:
        """Return the coordinator's store, which fits `rendezvous.Store`.

        All keys begin with `prefix`, and `get` waits for `timeout_s`. A wait polls `hopeless`,
        which returns the reason to give up, or "".
        """
        return StoreClient(self._ask_store, timeout_s, prefix, hopeless)

    def leave_store(self, prefix: str, num_ranks: int) -> None:
        """Have the store drop a prefix once `num_ranks` ranks have left it; does not wait."""
        with contextlib.suppress(CommunicatorError):  # closed: the store has ended
            self._ask("leave", [prefix, num_ranks])

    def _ask(self, kind: str, body: list[Any]) -> "Future[Any]":
        participant, answer = self._require(), Future[Any]()
        self._plane.loop.post(lambda: participant.ask(kind, body, answer))
        return answer

    def _ask_store(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        participant = self._require()
        # Checked first: the cause of hopelessness may also have ended the coordinator.
        _raise_if_hopeless(deadline)
        answer = self._ask(kind, list(body))
        try:
            while not wait([answer], min(_SLICE_S, deadline.remaining_s)).done:
                _raise_if_hopeless(deadline)
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
        """Ask all ranks for their reports; return the reports received in time, by rank."""
        participant = self._require()
        answers = {rank: Future[bytes]() for rank in range(len(self.members.addresses))}
        self._plane.loop.post(lambda: participant.survey(answers))
        _, late = wait(answers.values(), timeout_s)
        self._plane.loop.post(lambda: participant.cancel(late))
        # An answer is an exception if the communicator was closed.
        arrived = {rank: one for rank, one in answers.items() if one not in late}
        return {rank: one.result() for rank, one in arrived.items() if one.exception() is None}

    def clock(self) -> ClockReading | None:
        """Return the offset of this rank's clock from the coordinator's; None: not known yet."""
        return None if self._participant is None else self._participant.probe.reading()

    def close(self) -> None:
        """Leave the control plane; the last rank to leave ends its thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._plane.loop.call(lambda: self._plane.leave(self.members))
        if self._participant is not None:
            self._participant.close(CommunicatorError("the communicator is closed"))
            self._participant = None  # drops the reference to the engine
        release(self._plane)

    def close_in_child(self) -> None:
        """Disable this object in a forked child, which lacks the thread."""
        self._closed = True

    def _require(self) -> Participant:
        if self._participant is None or self._closed:
            raise CommunicatorError("the communicator has no control plane: it is closed, or alone")
        return self._participant


def _raise_if_hopeless(deadline: Deadline) -> None:
    reason = deadline.hopeless() if deadline.hopeless is not None else ""
    if reason:
        raise BootstrapError(reason)
