"""Encryption of the connections between nodes (HCCL_TLS=1): TLS 1.3, both sides pinned.

Every rank makes a key and a self-signed certificate for each communicator. The certificate travels
in the rank's peer info at the rendezvous, and a connection stands only if its other end shows the
certificate of the rank that it claims to be. No authority, no file and no clock is involved. The
handshake with the job's secret then runs inside.
"""

import contextlib
import datetime
import os
import secrets
import socket
import ssl
import tempfile
from collections.abc import Iterable
from typing import BinaryIO, cast

from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.system_calls import can_share_memory

_RECORD_BYTES = 16 * 1024  # what TLS encrypts at a time


class Tls:
    """Wraps connected sockets; trusts the certificates of one communicator's ranks alone.

    Attributes:
        certificate: this rank's, in DER. Its private key is in OpenSSL only.
    """

    def __init__(self) -> None:
        """Make a key pair.

        InvalidArgumentError: the package that does it is not installed. BootstrapError: no file.
        """
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.num_tickets = 0  # nobody resumes; and the engine shall not read tickets
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.certificate, pem = _make_certificate()
        for context in (self._server, self._client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # ranks have no names; certificates are compared
            context.verify_mode = ssl.CERT_REQUIRED
        # OpenSSL reads keys from files only; this one has no name and ends with the descriptor.
        try:
            with _nameless_file() as file:
                file.write(pem)
                for context in (self._server, self._client):
                    context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except OSError as error:
            raise BootstrapError(
                f"HCCL_TLS=1: OpenSSL reads the key from a file of {len(pem)} bytes, which this "
                f"process could not make: {error}; see ulimit -f and, without memfd_create, TMPDIR"
            ) from error

    def trust(self, certificates: Iterable[bytes]) -> None:
        """Admit the ranks that show one of these certificates, in DER."""
        authorities = b"".join(certificates)
        if authorities:
            self._server.load_verify_locations(cadata=authorities)
            self._client.load_verify_locations(cadata=authorities)

    def wrap(self, connected: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
        """Take over a connection, accepted or dialled; the TLS handshake comes later."""
        context = self._server if server_side else self._client
        return context.wrap_socket(
            connected, server_side=server_side, do_handshake_on_connect=False
        )


def _nameless_file() -> BinaryIO:
    if can_share_memory():
        return cast(BinaryIO, open(os.memfd_create("hccl-tls", os.MFD_CLOEXEC), "wb", buffering=0))
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


def _make_certificate() -> tuple[bytes, bytes]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise InvalidArgumentError(
            "HCCL_TLS=1 needs the package `cryptography`: pip install 'hccl-py[tls]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    # Names differ, so that none of many certificates is tried in vain.
    common_name = f"hccl-{secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # It lives as long as the communicator; a clock that is wrong shall not matter.
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31))
        .sign(key, hashes.SHA256())
    )
    private_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    der, pem = (
        certificate.public_bytes(encoding)
        for encoding in (serialization.Encoding.DER, serialization.Encoding.PEM)
    )
    return der, private_key + pem


class TlsStream(_core.Stream):
    """An encrypted connection, as the engine reads and writes it. One thread at a time may."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__()
        self._socket = connected

    def fd(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def send(self, data: memoryview) -> int:
        """Send as much as fits now; OSError: the connection is broken.

        Returns:
            Bytes taken, 0 if it would block; then the next call must begin with the same bytes.
        """
        num_sent = 0
        # Record by record, and no record longer at the second try than at the first: OpenSSL has
        # encrypted it by then and would reject a shorter one.
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while num_sent < len(data):
                num_sent += self._socket.send(data[num_sent : num_sent + _RECORD_BYTES])
        return num_sent

    def receive(self, into: memoryview) -> int:
        """Read what is there, return how many bytes; OSError: it broke; EOFError: it was closed."""
        num_received = 0
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while num_received < len(into):
                received = self._socket.recv_into(into[num_received:])
                if received == 0:
                    if num_received:  # hand out what came before; the next call raises
                        break
                    raise EOFError("the connection was closed")
                num_received += received
        return num_received

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
