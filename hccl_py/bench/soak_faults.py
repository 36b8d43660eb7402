"""What a rank of a soak does to itself: ends, stops, or spoils its own connections.

Nothing in the library knows of it. Deaths and resets strike from a thread, in the middle of
whatever the rank is doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.connection import Line
from hccl_py.transport.bootstrap.handshake import CONTROL
from hccl_py.transport.network.open_sockets import Connection

_NOISE = {
    "delay": 0.01,
    "corrupt": 0.004,
    "duplicate": 0.004,
    "truncate": 0.002,
    "reset": 0.002,
    "longest_delay_s": 0.002,
}
_MOST_RESETS = 3
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def strike_later(action: Callable[[], None], delay_s: float) -> threading.Timer:
    """Call `action` from another thread, some time from now; return that thread."""
    timer = threading.Timer(delay_s, action)
    timer.daemon = True
    timer.start()
    return timer


def die(kind: str, tell: Callable[[float], None]) -> None:
    """End or stop this process; `tell` says when, on the clock that all ranks of a host share."""
    tell(time.monotonic())
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "segv":
        ctypes.string_at(1)
    else:
        os._exit(7)


def reset_some(dice: random.Random, inodes: Collection[int]) -> int:
    """Reset up to three of this process's TCP connections to other nodes.

    Two ranks have four or more, and one that is left tells a broken path from a death.

    Args:
        dice: chooses which, and how.
        inodes: of the connections that may be chosen.

    Returns:
        How many.
    """
    mine = list(_connections(inodes))
    chosen = dice.sample(mine, min(len(mine), _MOST_RESETS))
    for connection in mine:
        with connection, contextlib.suppress(OSError):
            if connection not in chosen:
                continue
            if dice.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                _disconnect(connection)
            else:
                connection.shutdown(socket.SHUT_RDWR)
    return len(chosen)


def _connections(inodes: Collection[int]) -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.stat(f"/proc/self/fd/{name}").st_ino not in inodes:
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            yield connection
        else:
            connection.close()


def _disconnect(connection: socket.socket) -> None:
    """Send a reset although other descriptors of the connection are open."""
    unspecified = struct.pack("H14x", socket.AF_UNSPEC)
    ctypes.CDLL(None).connect(connection.fileno(), unspecified, len(unspecified))


@contextlib.contextmanager
def noisy_lanes(seed: int) -> Iterator[list[_core.FaultyStream]]:
    """Let the lanes that connect from now on lose, double, delay and spoil some of their frames.

    Yields:
        The lanes, which count what they did.
    """
    detach = Line.detach
    made: list[_core.FaultyStream] = []
    dice = random.Random(seed)

    def detach_and_spoil(line: Line) -> Connection:
        connection = detach(line)
        is_lane = line.socket.family != socket.AF_UNIX and line.handshake.index != CONTROL
        if not is_lane:
            return connection
        made.append(_core.FaultyStream(connection, dice.randrange(1 << 32), **_NOISE))
        return made[-1]

    Line.detach = detach_and_spoil  # type: ignore[method-assign,assignment]
    try:
        yield made
    finally:
        Line.detach = detach  # type: ignore[method-assign]
