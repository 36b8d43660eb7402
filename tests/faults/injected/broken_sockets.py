"""Breaks connections that a communicator has open, beneath it: as networks and bugs do.

The descriptor keeps its number, so that nothing else of the process can get it in between.
"""

import contextlib
import os
import random
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator

from noisy_stream import NoisyStream

from hccl_py import Communicator
from hccl_py.transport.bootstrap.connection import Connection, PendingConnection
from hccl_py.transport.bootstrap.world import CONTROL

FRAME_MAGIC = b"HL\x01\x00"
"""Of `csrc/lanes/path.h`: a data frame."""


def engine_sockets(comm: Communicator, family: socket.AddressFamily) -> list[int]:
    """Return the descriptors of the engine's connections: Unix inside the node, else TCP."""
    found = []
    for descriptor, inode in _opened(comm).items():
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == inode and _family(descriptor) == family:
                found.append(descriptor)
    return found


def other_sockets(comm: Communicator, before: Iterable[int]) -> list[int]:
    """Return connected sockets that are neither the engine's nor among the inodes `before`."""
    known = {*_opened(comm).values(), *before}
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if socket_inode(descriptor) not in known | {None} and _is_connected(descriptor):
                found.append(descriptor)
    return found


def _opened(comm: Communicator) -> dict[int, int]:
    return dict(comm._lifetime._sockets._inodes)  # the control thread adds lanes


def socket_inode(descriptor: int) -> int | None:
    """Return the kernel's number of a socket; None for what is none."""
    status = os.fstat(descriptor)
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def open_socket_inodes() -> set[int]:
    """Return the numbers of all sockets that this process has open."""
    inodes = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            inode = socket_inode(descriptor)
            if inode is not None:
                inodes.add(inode)
    return inodes


def close_socket(descriptor: int, chance: random.Random) -> None:
    """End a connection in one of the ways there are: both halves of it, or this end's alone."""
    with _borrowed(descriptor) as borrowed, contextlib.suppress(OSError):
        borrowed.shutdown(chance.choice((socket.SHUT_RDWR, socket.SHUT_WR)))


def shut_socket(descriptor: int) -> None:
    """End a connection of somebody who would not survive the loss of the descriptor itself."""
    with _borrowed(descriptor) as borrowed, contextlib.suppress(OSError):
        borrowed.shutdown(socket.SHUT_RDWR)


def reset_socket(descriptor: int) -> None:
    """Have the peer get a reset, where the protocol has one."""
    with _borrowed(descriptor) as borrowed:
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _replace_by_closed(descriptor)


def write_half_frame(descriptor: int, chance: random.Random, ends: bool = False) -> None:
    """Write the beginning of a frame, of any length below a whole one; maybe end the connection.

    Both through one copy: the peer sees the first at once, and the owner closes its descriptor.
    """
    with _borrowed(descriptor) as borrowed, contextlib.suppress(OSError):
        frame = FRAME_MAGIC + chance.randbytes(60)
        borrowed.send(frame[: chance.randrange(1, 64)], socket.MSG_DONTWAIT)
        if ends:
            borrowed.shutdown(socket.SHUT_RDWR)


def write_garbage(descriptor: int, chance: random.Random) -> None:
    """Write bytes that mean nothing."""
    with _borrowed(descriptor) as borrowed, contextlib.suppress(OSError):
        borrowed.send(chance.randbytes(chance.randrange(1000, 5000)), socket.MSG_DONTWAIT)


def _replace_by_closed(descriptor: int) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.close()
        os.dup2(here.fileno(), descriptor, inheritable=False)


def _borrowed(descriptor: int) -> socket.socket:
    """Copy the descriptor, which stays its owner's."""
    return socket.socket(fileno=os.dup(descriptor))


def _family(descriptor: int) -> int:
    with _borrowed(descriptor) as borrowed:
        return borrowed.family


def _is_connected(descriptor: int) -> bool:
    with _borrowed(descriptor) as borrowed:
        try:
            borrowed.getpeername()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def noisy_lanes(seed: int) -> Iterator[None]:
    """Have lanes that connect meanwhile lose, double, delay and spoil some of their frames."""
    detach, chance = PendingConnection.detach, random.Random(seed)

    def detach_and_spoil(line: PendingConnection) -> Connection:
        connection = detach(line)
        if line.socket.family == socket.AF_UNIX or line.key is None or line.key.index == CONTROL:
            return connection
        return NoisyStream(connection, chance.randrange(1 << 32))

    PendingConnection.detach = detach_and_spoil  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PendingConnection.detach = detach  # type: ignore[method-assign]


Break = Callable[[int, random.Random], None]
