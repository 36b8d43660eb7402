"""Listens and runs handshakes, all on one selector and one thread.

An accepted connection is unauthenticated until it proves within `_PROOF_TIMEOUT_S` that it knows
the secret; meanwhile it blocks no other. If there are too many, connections whose hello names
nothing that only members know are dropped first, so a flood does not keep members out.
`network/rejections.py` logs each rejection.
"""

import contextlib
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Any, Generic, TypeVar

from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import Rejections
from hccl_py.transport.network.sockets import peer_process
from hccl_py.transport.network.system_calls import is_no_descriptor
from hccl_py.transport.threads import is_of_signal_handler
from hccl_py.transport.wire.handshake import CONNECTING, Handshake, RejectedError

Pending = TypeVar("Pending", bound=Handshake)

_PROOF_TIMEOUT_S = 10.0
_ACCEPTED_PER_TURN = 8
_REST_S = 0.1
"""How long listeners are not watched when no descriptor is left: they stay readable."""


class Acceptor(ABC, Generic[Pending]):
    """Accepts connections and authenticates them.

    Attributes:
        ATTEMPT_S: time limit of a handshake once the peer has proved itself.
    """

    ATTEMPT_S: float

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        max_unauthenticated: int,
        selector: BaseSelector,
        who: str,
    ) -> None:
        """Prepare; the loop of `selector` calls the registered callbacks, and `tick`.

        `who` names this side in the log.
        """
        self._listeners = listeners
        self._max_unauthenticated = max_unauthenticated
        self._selector = selector
        # Handshakes by deadline, and the unauthenticated ones of them in order of arrival.
        self._pending: dict[Pending, float] = {}
        self._unauthenticated: dict[Pending, None] = {}
        self._rests_until_s = math.inf
        self._rejections = Rejections(who)

    @abstractmethod
    def _shake_hands(self, accepted: socket.socket, client: str) -> Pending:
        """Return the handshake for a connection accepted from `client`."""

    @abstractmethod
    def _complete(self, pending: Pending) -> None:
        """Take over a connection after its handshake."""

    @abstractmethod
    def _member_failed(self, pending: Pending, rejection: RejectedError) -> None:
        """Raise, or retry later: the handshake with a member failed."""

    def _out_of_descriptors(self, cause: OSError) -> None:
        """Raise, or wait a little: no descriptor is left for a connection."""
        self._rests_until_s = time.monotonic() + _REST_S
        for listener in self._listeners:
            self._selector.unregister(listener)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        return min(self._rests_until_s, *self._pending.values(), math.inf)

    def tick(self) -> None:
        """Drop expired handshakes."""
        now_s = time.monotonic()
        if now_s >= self._rests_until_s:
            self._rests_until_s = math.inf
            self._listen()
        for pending, limit_s in tuple(self._pending.items()):
            if limit_s > now_s:
                continue
            if pending in self._unauthenticated:
                reason = f"it did not prove itself in {_PROOF_TIMEOUT_S:g} s"
                self._drop_unauthenticated(pending, reason)
            else:
                self._reject(
                    pending, RejectedError(f"no answer in {self._allowed_s(pending):.3g} s")
                )

    def _allowed_s(self, pending: Pending) -> float:
        return self.ATTEMPT_S

    def _listen(self) -> None:
        for listener in self._listeners:
            self._watch_listener(listener)

    def _watch_listener(self, listener: socket.socket) -> None:
        self._selector.register(listener, EVENT_READ, partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if is_of_signal_handler(error):
                    raise
                if is_no_descriptor(error):
                    self._make_room(error)
                return  # accept(2): other errors concern that connection only
            self._welcome(accepted, address)

    def _make_room(self, error: OSError) -> None:
        silent = self._most_suspect()
        if silent is None or silent.is_named:
            self._out_of_descriptors(error)
        else:
            self._drop_unauthenticated(silent, "no descriptor was left for others")

    def _welcome(self, accepted: socket.socket, address: Any) -> None:
        accepted.setblocking(False)
        pending = self._shake_hands(accepted, describe_client(accepted, address))
        if len(self._unauthenticated) >= self._max_unauthenticated:
            suspect = self._most_suspect()
            assert suspect is not None
            self._drop_unauthenticated(suspect, "too many others are waiting")
        self._unauthenticated[pending] = None
        self._begin(pending, _PROOF_TIMEOUT_S)

    def _most_suspect(self) -> Pending | None:
        """Return the oldest unauthenticated handshake, preferably one without a known name."""
        unnamed = (pending for pending in self._unauthenticated if not pending.is_named)
        return next(unnamed, next(iter(self._unauthenticated), None))

    def _drop_unauthenticated(self, pending: Pending, reason: str) -> None:
        self._give_up(pending)
        self._rejections.note(pending.address, reason)

    def _begin(self, pending: Pending, timeout_s: float) -> None:
        self._pending[pending] = time.monotonic() + timeout_s
        self._selector.register(pending.socket, EVENT_READ, partial(self._advance, pending))
        self._advance(pending)

    def _advance(self, pending: Pending) -> None:
        if pending.closed:  # by an earlier event of the same turn
            return
        was_connecting = pending.step == CONNECTING
        try:
            event = pending.advance()
        except RejectedError as rejection:
            self._reject(pending, rejection)
            return
        proved = pending.authenticated and pending in self._unauthenticated
        if proved:
            del self._unauthenticated[pending]
        if proved or (was_connecting and pending.step != CONNECTING):
            self._pending[pending] = time.monotonic() + self.ATTEMPT_S
        if event is not None:
            self._selector.modify(pending.socket, event, partial(self._advance, pending))
            return
        self._forget(pending)
        self._complete(pending)

    def _reject(self, pending: Pending, rejection: RejectedError) -> None:
        if pending in self._unauthenticated and not pending.authenticated:
            self._drop_unauthenticated(pending, str(rejection))
            return
        self._give_up(pending)
        self._member_failed(pending, rejection)

    def _give_up(self, pending: Pending) -> None:
        self._forget(pending)
        pending.close()

    def _forget(self, pending: Pending) -> None:
        del self._pending[pending]
        self._unauthenticated.pop(pending, None)
        self._selector.unregister(pending.socket)

    def _close_connections(self) -> None:
        for watched in (*self._listeners, *(pending.socket for pending in self._pending)):
            with contextlib.suppress(KeyError, ValueError):  # it is not registered at present
                self._selector.unregister(watched)
        self._rejections.log_rest()
        self._close_copies()

    def _close_copies(self) -> None:
        """Close the connections alone: a forked child shares its parent's selector."""
        for pending in self._pending:
            pending.close()
        self._pending.clear()
        self._unauthenticated.clear()


def describe_client(accepted: socket.socket, address: Any) -> str:
    """Render the dialling peer, for messages."""
    if accepted.family == socket.AF_UNIX:
        return f"unix socket of pid {peer_process(accepted)[0]}"
    return describe_target((address[0], address[1]))
