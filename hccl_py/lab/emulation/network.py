"""A rank's connection to the process that emulates the network; `server.py` is the other end."""

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
"""The `until_ns` of a communicator that closes: it has reported all its calls."""


class NetworkClient:
    """This process's connection to the network. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._answers_steps = False

    def carry(self, dialled: socket.socket, from_node: str, to_node: str) -> socket.socket:
        """Insert the network into a connection that is being made between two nodes.

        Args:
            dialled: a non-blocking TCP socket; the network takes it over. It is closed here.
            from_node: HCCL_NODE_ID of this rank.
            to_node: HCCL_NODE_ID of the rank that was dialled.

        Returns:
            This rank's new socket, connected and non-blocking; the network forwards its bytes.

        Raises:
            ConnectionRefusedError: no process listens there yet.
            BootstrapError: the network's process has ended.
        """
        with dialled:
            _await_connection(dialled)
            mine, theirs = _pair()
            with theirs:
                self.report({"carry": [from_node, to_node]}, [dialled.fileno(), theirs.fileno()])
        mine.setblocking(False)
        return mine

    def leave_to_parent(self) -> None:
        """Close a forked child's copy of the connection, which is the parent's."""
        if self._socket is not None:
            self._socket.close()
        # A new lock, because a thread of the parent may have locked the old one.
        self._socket, self._lock = None, threading.Lock()

    def report(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message of at most MAX_MESSAGE_BYTES; after a step, wait for its faults.

        Raises:
            BootstrapError: the network's process has ended.
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
                f"the process that emulates the network ended ({error}); hccl-launch printed why"
            ) from error

    def _open(self) -> socket.socket:
        if self._socket is None:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                opened.settimeout(_ANSWER_S)
                opened.connect("\0" + address())
                # Any user may take the name once that process has ended.
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
    """Return two connected TCP sockets; other kinds do not count unacknowledged bytes."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        mine = socket.create_connection(listener.getsockname(), timeout=_ANSWER_S)
        while True:
            theirs, address = listener.accept()
            if address == mine.getsockname():
                return mine, theirs
            theirs.close()  # a connection of another process


NETWORK = NetworkClient()
"""The connection of this process."""

register(LifecycleStage.CONTROL_PLANE, in_forked_child=NETWORK.leave_to_parent)
