"""A TLS connection as the engine sees it: bytes in and out of the engine's own buffers."""

import contextlib
import ssl

from hccl_py.transport import _core

_RECORD_BYTES = 16 * 1024
"""What TLS encrypts at a time."""


class TlsStream(_core.Stream):
    """An encrypted connection, as the engine reads and writes it. One thread at a time may."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        """Take over a non-blocking connection whose handshake is complete."""
        super().__init__()
        self._socket = connected

    def fd(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def send(self, data: memoryview) -> int:
        """Send as much as fits now.

        Returns:
            Bytes taken, 0 if it would block; then the next call must begin with the same bytes.

        Raises:
            OSError: the connection is broken.
        """
        num_sent = 0
        # Record by record, and no record longer at the second try than at the first: OpenSSL has
        # encrypted it by then and would refuse a shorter one.
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while num_sent < len(data):
                num_sent += self._socket.send(data[num_sent : num_sent + _RECORD_BYTES])
        return num_sent

    def receive(self, into: memoryview) -> int:
        """Read what is there.

        Returns:
            Bytes read, 0 if nothing is there now.

        Raises:
            OSError: the connection is broken; ConnectionError: the other side closed it.
        """
        num_received = 0
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while num_received < len(into):
                received = self._socket.recv_into(into[num_received:])
                if received == 0:
                    if num_received:  # hand out what came before; the next call tells the end
                        break
                    raise ConnectionResetError("the connection was closed")
                num_received += received
        return num_received

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
