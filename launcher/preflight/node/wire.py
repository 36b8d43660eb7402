"""A connection between two nodes that test the way: first both prove that they know the secret.

    client  hello: magic, nonce                      ->
                                                     <-  hello: magic, nonce
    client  HMAC("client", both hellos)              ->  server drops a wrong one here
                                                     <-  HMAC("server", both hellos)

Without the secret a client gets a random hello. Afterwards the client may see whether packets of
full size pass:

    BULK_BYTES bytes                                 ->
                                                     <-  BULK when all have come
"""

import hmac
import secrets
import socket

from hccl_py.transport.deadline import Deadline

BULK = b"B"
BULK_BYTES = 128 << 10
_MAGIC = b"HCCL-PF1"
_NONCE_BYTES = 32
_HELLO_BYTES = len(_MAGIC) + _NONCE_BYTES
_PROOF_BYTES = 32


class WrongPeerError(Exception):
    """The other side does not speak this protocol, or does not know the job's secret."""


class Wire:
    """Sends and receives whole pieces before a deadline; `TimeoutError` after it."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        """Take over a connected socket."""
        self._connection = connection
        self.deadline = deadline
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def prove_as_client(self, secret: bytes) -> None:
        """Run the side that dialled; WrongPeerError: the other one is no server of this job."""
        mine = _MAGIC + secrets.token_bytes(_NONCE_BYTES)
        self.send(mine)
        theirs = self._receive_hello()
        self.send(_sign(secret, b"client", mine + theirs))
        self._check(_sign(secret, b"server", mine + theirs))

    def prove_as_server(self, secret: bytes) -> None:
        """Run the side that was dialled; WrongPeerError: the other one is no node of this job."""
        theirs = self._receive_hello()
        mine = _MAGIC + secrets.token_bytes(_NONCE_BYTES)
        self.send(mine)
        self._check(_sign(secret, b"client", theirs + mine))
        self.send(_sign(secret, b"server", theirs + mine))

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self._await_no_longer()
        self._connection.sendall(data)

    def receive(self, num_bytes: int) -> bytes:
        """Receive exactly so many bytes; ConnectionError: the other side closed."""
        parts = bytearray()
        while len(parts) < num_bytes:
            self._await_no_longer()
            part = self._connection.recv(num_bytes - len(parts))
            if not part:
                raise ConnectionError("the other side closed the connection")
            parts += part
        return bytes(parts)

    def _receive_hello(self) -> bytes:
        hello = self.receive(_HELLO_BYTES)
        if not hello.startswith(_MAGIC):
            raise WrongPeerError("another program listens there")
        return hello

    def _check(self, expected: bytes) -> None:
        if not hmac.compare_digest(self.receive(_PROOF_BYTES), expected):
            raise WrongPeerError("it does not know the secret of this job")

    def _await_no_longer(self) -> None:
        remaining_s = self.deadline.remaining_s
        if not remaining_s:
            raise TimeoutError("no time left")
        self._connection.settimeout(remaining_s)


def _sign(secret: bytes, side: bytes, hellos: bytes) -> bytes:
    return hmac.digest(secret, b"hccl-py preflight " + side + hellos, "sha256")
