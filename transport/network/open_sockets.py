"""Which sockets a process has open, so that a forked child can close its copies of them.

The engine closes a connection that broke, and the descriptor may belong to another file by the time
of the fork. The kernel's number of the socket identifies it.
"""

import contextlib
import os

from hccl_py.transport._core import Stream

Connection = int | Stream
"""An authenticated connection for the engine, non-blocking: a descriptor, or a stream over one."""


class OpenSockets:
    """Connections of one communicator; those that are closed meanwhile do no harm."""

    def __init__(self) -> None:
        self._inodes: dict[int, int] = {}

    def add(self, connection: Connection) -> None:
        """Remember an open connection."""
        descriptor = connection if isinstance(connection, int) else connection.fd()
        self._inodes[descriptor] = os.fstat(descriptor).st_ino

    def close_copies(self) -> None:
        """Close those that still are what they were. For a forked child."""
        for descriptor, inode in self._inodes.items():
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)
