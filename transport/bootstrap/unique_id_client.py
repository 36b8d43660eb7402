"""The client of the store of a unique id, which `unique_id_store.py` serves."""

import contextlib
import itertools
import math
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.wire.client import WireClient
from hccl_py.transport.wire.frames import WireSettings

_MAX_MESSAGE_BYTES = 64 << 20
_AFTERWARDS_S = 0.5  # after the deadline, to find missing ranks and to share the failure
_GONE_S = 1.0  # how long the server may be unreachable
_REJECTED_S = 2.0  # how long it may reject a client: the server of an earlier job may be closing
_TURN_S = 0.05
_CLIENT_LINGER_S = 1.0
# A client without a request reads nothing, so it answers no beat.
_BEAT_S, _SERVER_SILENT_S, _CLIENT_SILENT_S = 1.0, 5.0, math.inf
_OTHER_SECRET = (
    "HCCL_SECRET is another one there; set it to the same value on every rank, or on none"
)


def wire_settings(secret: bytes) -> WireSettings:
    """Return the settings of both ends."""
    silences_s = _SERVER_SILENT_S, _CLIENT_SILENT_S
    return WireSettings(b"HCCL-UID", secret, _MAX_MESSAGE_BYTES, _BEAT_S, *silences_s)


@dataclass(frozen=True)
class ServerAddress:
    """Where the store of a unique id is served.

    Attributes:
        made_by: the process that serves there, for messages.
        comes_later: whether it may not serve yet.
        if_gone: what to do if it ended, for messages.
        name: prefix of the keys of one rendezvous among several.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    made_by: str
    comes_later: bool = False
    name: str = ""
    if_gone: str = (
        "either that process ended, or all ranks of this id had met, or left; make a new id for "
        "every communicator"
    )

    def __str__(self) -> str:
        return describe_target((self.host, self.port))


class UniqueIdClient(StoreClient):
    """A rank's connection with the store of a unique id. One thread uses it.

    Attributes:
        problem: why the rendezvous failed; "" if it has not.
        rejected: the connections that the server rejected, for an error; "" if none.
        stays, ended: see `sealed_store.Store`.
    """

    stays = False
    ended: Callable[[], Set[int]] = staticmethod(frozenset)

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        """Start to dial; `timeout_s` is for all requests together."""
        self._all = Deadline(timeout_s)
        self._afterwards: Deadline | None = None
        super().__init__(self._ask_server, timeout_s, address.name)
        self.problem = self.rejected = ""
        self._server = f"the store of the unique id at {address} ({address.made_by})"
        self._comes_later = address.comes_later  # until `stay`
        self._if_gone = address.if_gone
        self._greeting: tuple[Any, ...] = ()  # on every new connection
        self._numbers = itertools.count(1)
        self._name = secrets.token_bytes(16)
        self._was_up = False
        self._selector = selectors.DefaultSelector()
        settings, target = wire_settings(address.secret), (address.host, address.port)
        self._wire = WireClient(self._selector, target, settings, self)
        self._has_new_connection = False
        self._answers: list[tuple[int, str, Any, str]] = []
        self._gone: Deadline | None = None
        self._rejected: Deadline | None = None

    def join(self, rank: int, world_size: int) -> None:
        """Announce this rank; BootstrapError: no answer, or the ranks contradict each other."""
        who = f"pid {os.getpid()} on {socket.gethostname()}"
        join = "join", rank, world_size, who, self._name
        self._ask(*join, deadline=self._all)
        self._greeting = join

    def visit(self, timeout_s: float | None = None) -> None:
        """Use the store until `leave`, also after another process has begun to serve it.

        BootstrapError: no answer within `timeout_s`, or within the time for all requests.
        """
        self._ask("visit", deadline=self._all if timeout_s is None else Deadline(timeout_s))
        self._greeting = ("visit",)

    def stay(self) -> None:
        """Accept no other server than the present one from now on."""
        self._greeting, self._comes_later = (), False

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Set a key if it has the expected value; return its final value."""
        request = "compare", self._prefix + key, bytes(expected), bytes(value)
        return bytes(self._ask(*request, deadline=self._deadline()))

    def fail(self, problem: str) -> None:
        """End the rendezvous for all ranks, with the reason."""
        self._ask("fail", problem, deadline=self._all)

    def leave(self) -> None:
        """Leave the store, and close the connection."""
        if self._was_up:
            with contextlib.suppress(BootstrapError):
                self._ask("leave", self._name, deadline=Deadline(_CLIENT_LINGER_S))
        self.close()

    def close(self) -> None:
        """Close the connection of a client that has not joined, nor visited."""
        self._wire.close(_CLIENT_LINGER_S)
        self._selector.close()

    def why_gone(self) -> str:
        """Look after the connection; return why the server is gone, or ""."""
        try:
            self._turn(0.0)
            self._check_server()
        except BootstrapError as error:
            return str(error)
        return ""

    def _deadline(self) -> Deadline:
        if self._all.remaining_s > _AFTERWARDS_S:
            return self._all
        # No request is cut short by the end of the time: it may ask which ranks are missing.
        self._afterwards = self._afterwards or Deadline(2 * _AFTERWARDS_S)
        return self._afterwards

    def _ask_server(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        number = next(self._numbers)
        request = msgpack.packb([number, kind, *body])
        is_sent = False
        while True:
            if self.hopeless is not None and (reason := self.hopeless()):
                self.hopeless = None  # so that this client can report it
                raise BootstrapError(reason)
            if self._wire.is_up and not is_sent:
                self._wire.send(request)
                is_sent = True
            self._turn(min(_TURN_S, deadline.remaining_s))
            if self._has_new_connection:  # a request on the old one may be lost
                self._has_new_connection = is_sent = False
                if self._greeting:
                    self._wire.send(msgpack.packb([next(self._numbers), *self._greeting]))
            answers, self._answers = self._answers, []
            for its_number, problem, value, rejected in answers:
                self.rejected = rejected
                self.problem = self.problem or problem
                if its_number != number:
                    continue
                if value is not None and (kind == "check" or not problem):
                    return value
                if not problem:
                    raise BootstrapError(
                        f"{self._server} has ended this rendezvous; start another one on all ranks"
                    )
            if self.problem and kind != "check":
                raise BootstrapError(self.problem)
            self._check_server()
            if deadline.expired:
                hint = (
                    ": no process serves it there; rank 0 did not start, or its process failed "
                    "and ended; look at its log (is HCCL_SECRET the same in all processes?)"
                )
                if self._rejected is not None:
                    hint = f", but rejects this rank: {_OTHER_SECRET}"
                raise BootstrapError(
                    f"{self._server} did not answer {deadline}{'' if self._wire.is_up else hint}"
                )

    def _turn(self, timeout_s: float) -> None:
        for ready, _ in self._selector.select(timeout_s):
            ready.data()
        self._wire.turn()

    def on_up(self) -> None:
        """See `wire.client.ClientOwner`."""
        self._was_up = self._has_new_connection = True
        self._gone = self._rejected = None

    def on_message(self, message: bytes) -> None:
        """See `wire.client.ClientOwner`."""
        self._answers.append(tuple(msgpack.unpackb(message)))

    def on_down(self) -> None:
        """See `wire.client.ClientOwner`."""
        self._gone = None if self._wire.was_reset else self._gone or Deadline(_GONE_S)
        since = self._rejected or Deadline(_REJECTED_S)
        self._rejected = since if self._wire.other_secret else None

    def _check_server(self) -> None:
        if self._gone is not None and self._gone.expired and not self._comes_later:
            why = "answers for another unique id" if self._rejected else "has ended"
            self.problem = self.problem or f"{self._server} {why}: {self._if_gone}"
            raise BootstrapError(self.problem)
        if self._rejected is not None and self._rejected.expired:
            raise BootstrapError(f"{self._server} rejects this rank: {_OTHER_SECRET}")
