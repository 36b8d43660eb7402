"""Encryption of the connections between nodes (HCCL_TLS=1): TLS 1.3, both sides pinned.

Every rank makes a key and a self-signed certificate for each communicator. The certificate travels
in the rank's card at the rendezvous, sealed with the job's secret, and a connection is accepted
only if its other end shows the very certificate of the rank that it claims to be. No authority, no
file and no clock is involved. The handshake with the job's secret then runs inside.
"""

import datetime
import hashlib
import os
import secrets
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class Credentials:
    """A private key and the certificate that belongs to it.

    Attributes:
        certificate: public, in DER.
        pem: both, in PEM.
    """

    certificate: bytes
    pem: bytes = field(repr=False)

    @classmethod
    def make(cls) -> "Credentials":
        """Make a new pair.

        Raises:
            InvalidArgumentError: the package that does it is not installed.
        """
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
        name = x509.Name(
            [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"hccl-{secrets.token_hex(8)}")]
        )
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
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ) + certificate.public_bytes(serialization.Encoding.PEM)
        return cls(certificate.public_bytes(serialization.Encoding.DER), pem)


class Tls:
    """Wraps connected sockets; trusts the certificates of one communicator's ranks alone."""

    def __init__(self, credentials: Credentials, trusted: Iterable[bytes]) -> None:
        """Prepare both sides.

        Args:
            credentials: this rank's.
            trusted: certificates of the other ranks, in DER.
        """
        authorities = b"".join(trusted)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, credentials, authorities)
        self._server.num_tickets = 0  # nobody resumes; and the engine shall not read tickets
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, credentials, authorities)

    def wrap_dialled(self, connected: socket.socket) -> ssl.SSLSocket:
        """Take over a connection that this rank dialled; the handshake is still to be made."""
        return self._client.wrap_socket(connected, do_handshake_on_connect=False)

    def wrap_accepted(self, connected: socket.socket) -> ssl.SSLSocket:
        """Take over a connection that was accepted; the handshake is still to be made."""
        return self._server.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)


def fingerprint(certificate: bytes) -> bytes:
    """Return what tells a certificate (DER) from all others."""
    return hashlib.sha256(certificate).digest()


def _context(protocol: int, credentials: Credentials, authorities: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # ranks have no names; the certificate itself is compared
    context.verify_mode = ssl.CERT_REQUIRED
    if authorities:
        context.load_verify_locations(cadata=authorities)
    # OpenSSL reads keys from files only; this one has no name and ends with the descriptor.
    descriptor = os.memfd_create("hccl-tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, credentials.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
