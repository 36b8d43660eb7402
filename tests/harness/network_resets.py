"""Resets a connection as the network does: both ends get an error, and neither process an end."""

from __future__ import annotations

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


def connections_to(port: int) -> Iterator[int]:
    """Yield the descriptors of this process's connections with the server at a port."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    if copy.family != socket.AF_UNIX and copy.getpeername()[1] == port:
                        yield descriptor


def strike(port: int) -> None:
    """Reset them all."""
    for descriptor in connections_to(port):
        reset(descriptor)
