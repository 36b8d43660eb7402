"""Resets a connection as the network does: both ends get an error, and neither process an end."""

import contextlib
import ctypes
import os
import socket
import stat
from collections.abc import Iterator


def reset(descriptor: int) -> None:
    """Reset a TCP connection of this process, whose descriptor stays its owner's."""
    unspecified = bytes(16)  # connect(AF_UNSPEC): the kernel sends a RST
    ctypes.CDLL(None).connect(descriptor, unspecified, len(unspecified))


def open_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield the descriptor of each socket of this process, and a copy until the next is asked for.

    A copy of what is no socket would stay open: `socket.socket` raises and does not close it.
    """
    for descriptor in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # it was closed meanwhile
            continue
        with copy:
            yield descriptor, copy


def connections_to(port: int) -> Iterator[int]:
    """Yield the descriptors of this process's connections with the server at a port."""
    for descriptor, copy in open_sockets():
        with contextlib.suppress(OSError):
            if copy.family != socket.AF_UNIX and copy.getpeername()[1] == port:
                yield descriptor


def strike(port: int) -> None:
    """Reset them all."""
    for descriptor in connections_to(port):
        reset(descriptor)
