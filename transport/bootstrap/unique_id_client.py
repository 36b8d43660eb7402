"""The store of a unique id as one rank sees it: a connection that outlives a slow start."""

import contextlib
import itertools
import os
import socket
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils.monitor import recv_monitor_message

from hccl_py.transport.bootstrap.unique_id_server import MAX_MESSAGE_BYTES, curve_keys
from hccl_py.transport.control.control_plane import hold, release
from hccl_py.transport.control.listener import curve_socket
from hccl_py.transport.control.store import StoreClient
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError

_GONE_S = 1.0
"""How long the server may be unreachable, once it was there or where it ought to be."""
_TURN_MS = 50
_LINGER_MS = 1000
_HEARTBEAT_MS = 1000
_SILENT_MS = 5000
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED) | int(zmq.EVENT_CONNECT_RETRIED)
_REJECTED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH) | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


@dataclass(frozen=True)
class ServerAddress:
    """Where the store of a unique id is served.

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


class UniqueIdClient(StoreClient):
    """A rank's connection with the store of a unique id. One thread uses it.

    Attributes:
        problem: why the ranks cannot meet; "" as long as they can.
    """

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        """Dial; nothing is waited for.

        Args:
            address: of the server.
            timeout_s: for all questions together.
        """
        self._all = Deadline(timeout_s)
        super().__init__(self._ask_server, timeout_s)
        self.problem = ""
        self._address = address
        self._numbers = itertools.count(1)
        self._plane = hold()
        keys = curve_keys(address.secret, "client")
        dealer = curve_socket(self._plane.sockets.context, zmq.DEALER, keys, MAX_MESSAGE_BYTES)
        dealer.curve_serverkey = curve_keys(address.secret, "server").public
        dealer.reconnect_ivl = 100
        dealer.heartbeat_ivl = _HEARTBEAT_MS
        dealer.heartbeat_timeout = _SILENT_MS
        dealer.ipv6 = ":" in address.host
        self._dealer = dealer
        self._monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(_UP | _DOWN | _REJECTED)
        self._is_up = self._was_up = self._rejected = False
        self._down: Deadline | None = None
        dealer.connect(f"tcp://{address}")
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
        self._ask("join", rank, world_size, who, deadline=self._all)

    def leave(self) -> None:
        """Say that this rank needs the store no more, and close."""
        with contextlib.suppress(zmq.ZMQError):
            self._dealer.send(msgpack.packb([next(self._numbers), "leave"]), zmq.NOBLOCK)
        self._dealer.disable_monitor()
        self._monitor.close(0)
        # What was sent leaves within the linger; a server that ended is not waited for.
        self._dealer.close(_LINGER_MS if self._is_up else 0)
        release(self._plane)

    def _deadline(self) -> Deadline:
        return self._all

    def _ask_server(self, kind: str, *body: Any, deadline: Deadline) -> Any:
        number = next(self._numbers)
        question = msgpack.packb([number, kind, *body])
        is_asked = False
        while True:
            if self._is_up and not is_asked:
                self._dealer.send(question)
                is_asked = True
            self._poller.poll(min(_TURN_MS, 1 + int(deadline.remaining_s * 1000)))
            if self._note_connection():
                is_asked = False  # a new connection: what was asked before may be lost
            for its_number, problem, value in self._answers():
                self.problem = self.problem or problem
                if its_number == number and value is not None and (kind == "check" or not problem):
                    return value
            if self.problem and kind != "check":
                raise BootstrapError(self.problem)
            self._check_server()
            if deadline.expired:
                raise BootstrapError(
                    f"{self._server()} did not answer {kind} {body[0]!r} {deadline}"
                )

    def _answers(self) -> list[tuple[int, str, Any]]:
        found: list[tuple[int, str, Any]] = []
        with contextlib.suppress(zmq.Again):
            while True:
                found.append(tuple(msgpack.unpackb(self._dealer.recv(zmq.NOBLOCK))))
        return found

    def _note_connection(self) -> bool:
        """Note what became of the connection; True if there is a new one."""
        is_new = False
        with contextlib.suppress(zmq.Again):
            while True:
                event = int(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])
                self._rejected = self._rejected or bool(event & _REJECTED)
                if event & _UP:
                    self._is_up = self._was_up = is_new = True
                    self._rejected = False
                    self._down = None
                elif event & _DOWN:
                    self._is_up = False
                    self._down = self._down or Deadline(_GONE_S)
        return is_new

    def _check_server(self) -> None:
        may_come = self._address.comes_later and not self._was_up
        if self._down is not None and self._down.expired and not self._is_up and not may_come:
            why = "answers for another unique id" if self._rejected else "has ended"
            self.problem = self.problem or (
                f"{self._server()} {why}: either that process ended, or all ranks of this id had "
                "met already; make a new id for every communicator"
            )
            raise BootstrapError(self.problem)

    def _server(self) -> str:
        return f"the store of the unique id at {self._address} ({self._address.made_by})"
