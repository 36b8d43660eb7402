"""A rank of `hccl-launch --emulate`: its way to the process that plays the network.

The other end, and what becomes of the messages, is `server.py`.
"""

import json
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from typing import Any

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.emulated import address
from hccl_py.transport.network.sockets import peer_process
from hccl_py.transport.process_lifecycle import LifecycleStage, register

_ANSWER_S = 10.0
_CONNECT_S = 1.0  # to an address of this machine: its kernel answers at once, or its queue is full
MAX_MESSAGE_BYTES = 1 << 16
NEVER_NS = 1 << 63
"""Until when a communicator that closes has reported its calls."""


class NetworkClient:
    """The network of this process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._answers_steps = False

    def carry(self, dialled: socket.socket, from_node: str, to_node: str) -> socket.socket:
        """Put the network into a connection that is being made between two nodes.

        Args:
            dialled: a non-blocking TCP socket; the network takes it over, also where this raises.
            from_node: HCCL_NODE_ID of this rank.
            to_node: that of the rank which was dialled.

        Returns:
            This rank's new end, connected and non-blocking: what goes in comes out of `dialled`.

        Raises:
            ConnectionRefusedError: no process listens there yet.
            BootstrapError: the network's process is gone.
        """
        with dialled:
            _await_connection(dialled)
            mine, theirs = _pair()
            with theirs:
                self.report({"carry": [from_node, to_node]}, [dialled.fileno(), theirs.fileno()])
        mine.setblocking(False)
        return mine

    def leave_to_parent(self) -> None:
        """In a forked child: the connection is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._lock = None, threading.Lock()  # a thread of the parent may hold it

    def report(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Report something, in MAX_MESSAGE_BYTES at most; the faults of a step happen meanwhile.

        Raises:
            BootstrapError: the network's process is gone.
        """
        packet = json.dumps(message).encode()
        try:
            with self._lock:
                connection = self._open()
                socket.send_fds(connection, [packet], descriptors)
                if "step" in message and self._answers_steps and not connection.recv(1):
                    raise ConnectionError("it closed the connection")
        except OSError as error:
            raise BootstrapError(
                f"the process that emulates the network is gone ({error}); hccl-launch printed why"
            ) from error

    def _open(self) -> socket.socket:
        if self._socket is None:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                opened.settimeout(_ANSWER_S)
                opened.connect("\0" + address())
                # The name is free once that process has ended, and any user may take it then.
                _, user = peer_process(opened)
                if user != os.getuid():
                    raise PermissionError(f"its name was taken by user {user}")
                self._answers_steps = opened.recv(1) == b"1"
            except BaseException:
                opened.close()
                raise
            self._socket = opened
        return self._socket


def _await_connection(dialled: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(dialled, selectors.EVENT_WRITE)
        connected = bool(selector.select(_CONNECT_S))
    code = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code or not connected:
        raise ConnectionRefusedError(code, os.strerror(code))


def _pair() -> tuple[socket.socket, socket.socket]:
    """Connect two TCP sockets: of other kinds the kernel could not say what is unacknowledged."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        mine = socket.create_connection(listener.getsockname(), timeout=_ANSWER_S)
        while True:
            theirs, address = listener.accept()
            if address == mine.getsockname():
                return mine, theirs
            theirs.close()  # another process was faster


NETWORK = NetworkClient()
"""Of this process."""

register(LifecycleStage.CONTROL_PLANE, in_forked_child=NETWORK.leave_to_parent)
