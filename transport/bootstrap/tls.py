"""Encryption of the connections between nodes (HCCL_TLS=1): TLS 1.3, both certificates pinned.

Every rank makes a key and a self-signed certificate for each communicator. The certificate is in
the rank's peer info at the rendezvous. A connection is accepted only if the other end presents
the certificate of the rank that it claims to be. This needs no authority, file or clock. The
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

from hccl_py.installation import pip_install
from hccl_py.transport import _core
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.system_calls import can_share_memory

_RECORD_BYTES = 16 * 1024  # what TLS encrypts at a time


class Tls:
    """Wraps connected sockets, and trusts only the certificates of one communicator's ranks.

    Attributes:
        certificate: this rank's, in DER. Its private key is in OpenSSL only.
    """

    def __init__(self) -> None:
        """Make a key pair.

        InvalidArgumentError: `cryptography` is missing. BootstrapError: OpenSSL got no key file.
        """
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.num_tickets = 0  # sessions are not resumed; the engine must read no tickets
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.certificate, pem = _make_certificate()
        for context in (self._server, self._client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # ranks have no names; certificates are compared
            context.verify_mode = ssl.CERT_REQUIRED
        # OpenSSL reads keys from files only; this one has no name and ends with its descriptor.
        try:
            with _nameless_file() as file:
                file.write(pem)
                for context in (self._server, self._client):
                    context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except OSError as error:
            raise BootstrapError(
                f"HCCL_TLS=1: could not write the private key ({len(pem)} bytes) to a file for "
                f"OpenSSL: {error}; check ulimit -f, and TMPDIR where memfd_create is missing"
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
            f"HCCL_TLS=1 needs the package `cryptography`: {pip_install('tls')}"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    # A unique name: OpenSSL tries all certificates with the name that a peer presents.
    common_name = f"hccl-{secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Always valid, so that a wrong clock does not matter; it serves one communicator only.
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
    """An encrypted connection for the engine. For one thread at a time."""

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
        # One record per call: OpenSSL keeps a record that it could not send, and rejects a retry
        # that is shorter or begins elsewhere.
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while num_sent < len(data):
                num_sent += self._socket.send(data[num_sent : num_sent + _RECORD_BYTES])
        return num_sent

    def receive(self, into: memoryview) -> int:
        """Read available bytes, return their number; OSError: it broke; EOFError: it was closed."""
        num_received = 0
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while num_received < len(into):
                received = self._socket.recv_into(into[num_received:])
                if received == 0:
                    if num_received:  # the next call raises
                        break
                    raise EOFError("the connection was closed")
                num_received += received
        return num_received

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
