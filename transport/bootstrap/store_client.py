"""The store of a meeting place, as one rank sees it: made for `rendezvous.Store`."""

import contextlib
import itertools
import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils.monitor import recv_monitor_message

from hccl_py.transport.bootstrap.store_server import MAX_MESSAGE_BYTES, curve_keys
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError

_GONE_S = 1.0
"""How long nobody may answer at the place, after it was there or where it ought to be."""
_TURN_MS = 50
_LINGER_MS = 1000
_HEARTBEAT_MS = 1000
_SILENT_MS = 5000
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED) | int(zmq.EVENT_CONNECT_RETRIED)
_REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH) | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


@dataclass(frozen=True)
class MeetingPoint:
    """Where a meeting place is.

    Attributes:
        host: numeric address.
        port: port.
        secret: what both sides derive their keys from.
        made_by: which process serves there, for messages.
        comes_later: it may not serve yet.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    made_by: str
    comes_later: bool = False

    def __str__(self) -> str:
        """Name the address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MeetingStore:
    """A rank's connection with the meeting place. One thread uses it.

    Attributes:
        problem: why the meeting cannot come to its end; "" as long as it can.
    """

    def __init__(self, point: MeetingPoint, timeout_s: float) -> None:
        """Dial; nothing is waited for.

        Args:
            point: where.
            timeout_s: for all that is asked, together.
        """
        self.problem = ""
        self._point = point
        self._deadline = Deadline(timeout_s)
        self._numbers = itertools.count(1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = self._dealer = self._context.socket(zmq.DEALER)
        dealer.curve_serverkey, _ = curve_keys(point.secret, "server")
        dealer.curve_publickey, dealer.curve_secretkey = curve_keys(point.secret, "client")
        dealer.maxmsgsize = MAX_MESSAGE_BYTES
        dealer.linger = _LINGER_MS
        dealer.reconnect_ivl = 100
        dealer.heartbeat_ivl = _HEARTBEAT_MS
        dealer.heartbeat_timeout = _SILENT_MS
        dealer.ipv6 = ":" in point.host
        self._monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(_UP | _DOWN | _REFUSED)
        self._is_up = self._was_up = self._refused = False
        self._down = Deadline(_GONE_S)
        self._seen_down = False
        dealer.connect(f"tcp://{point}")
        self._poller = zmq.Poller()
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def join(self, rank: int, world_size: int) -> None:
        """Say who this is.

        Raises:
            BootstrapError: nobody answers, or there is another rank of this number, or another
                number of ranks.
        """
        who = f"pid {os.getpid()} on {socket.gethostname()}"
        self._ask("join", rank, world_size, who)

    def set(self, key: str, value: bytes) -> None:
        """Set a key; returns when it is set."""
        self._ask("set", key, bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return bytes(self._ask("get", [key])[0])

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        self._ask("get", keys, deadline=Deadline(timeout.total_seconds()))

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are set."""
        return bool(self._ask("check", keys, raises=False))

    def leave(self) -> None:
        """Say that this rank needs the meeting no more, and close."""
        with contextlib.suppress(zmq.ZMQError):
            self._dealer.send(msgpack.packb([next(self._numbers), "leave"]), zmq.NOBLOCK)
        self._dealer.disable_monitor()
        self._monitor.close(0)
        # What was sent leaves within the linger; a place that is gone is not waited for.
        self._dealer.close(_LINGER_MS if self._is_up else 0)
        self._context.term()

    def _ask(
        self, kind: str, *body: Any, deadline: Deadline | None = None, raises: bool = True
    ) -> Any:
        deadline = deadline or self._deadline
        number = next(self._numbers)
        question = msgpack.packb([number, kind, *body])
        is_asked = False
        while True:
            if self._is_up and not is_asked:
                self._dealer.send(question)
                is_asked = True
            self._poller.poll(min(_TURN_MS, 1 + int(deadline.remaining_s * 1000)))
            if self._look():
                is_asked = False  # a new connection: what was asked before may be lost
            for its_number, problem, value in self._answers():
                self.problem = self.problem or problem
                if its_number == number and (value is not None or not problem):
                    self._raise_problem(raises)
                    return value
            self._raise_problem(raises)
            self._give_up_if_gone()
            if deadline.expired:
                raise BootstrapError(
                    f"{self._place()} did not answer {kind} {body[0]!r} {deadline}"
                )

    def _answers(self) -> list[tuple[int, str, Any]]:
        found: list[tuple[int, str, Any]] = []
        with contextlib.suppress(zmq.Again):
            while True:
                found.append(tuple(msgpack.unpackb(self._dealer.recv(zmq.NOBLOCK))))
        return found

    def _look(self) -> bool:
        """Take note of what became of the connection; True if there is a new one."""
        is_new = False
        with contextlib.suppress(zmq.Again):
            while True:
                event = int(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])
                self._refused = self._refused or bool(event & _REFUSED)
                if event & _UP:
                    self._is_up = self._was_up = is_new = True
                    self._seen_down = self._refused = False
                elif event & _DOWN:
                    self._is_up = False
                    if not self._seen_down:
                        self._seen_down, self._down = True, Deadline(_GONE_S)
        return is_new

    def _raise_problem(self, raises: bool) -> None:
        if self.problem and raises:
            raise BootstrapError(self.problem)

    def _give_up_if_gone(self) -> None:
        may_come = self._point.comes_later and not self._was_up
        if self._seen_down and self._down.expired and not self._is_up and not may_come:
            why = "answers for another unique id" if self._refused else "is gone"
            self.problem = self.problem or (
                f"{self._place()} {why}: either that process ended, or all ranks of this id had "
                "met already; make a new id for every communicator"
            )
            raise BootstrapError(self.problem)

    def _place(self) -> str:
        return f"the meeting place at {self._point} ({self._point.made_by})"
