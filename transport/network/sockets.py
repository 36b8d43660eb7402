"""The sockets of a rank: its listeners, and the connections that a forked child closes.

Listeners are bound before the rendezvous, because peer infos carry their addresses.
"""

import contextlib
import errno
import os
import secrets
import socket
import struct

from hccl_py.transport._core import Stream
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Endpoint, Identity
from hccl_py.transport.network.interfaces import address_family, choose_addresses
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.threads import is_of_signal_handler

BACKLOG = 4096
_UCRED = struct.Struct("=iII")
Connection = int | Stream
"""An authenticated connection for the engine, non-blocking: a descriptor, or a stream over one."""


def bind_listeners(settings: NetworkSettings) -> tuple[list[socket.socket], list[Endpoint]]:
    """Bind a non-blocking socket to each address that the settings choose; return both.

    BootstrapError: no address fits.
    """
    with contextlib.ExitStack() as opened:
        listeners, endpoints = [], []
        chosen = choose_addresses(settings)
        for local in chosen if settings.has_paths else chosen[:1]:
            bound = opened.enter_context(bind_listener(local, settings.ports))
            listeners.append(bound)
            endpoints.append(Endpoint(local.interface, *bound.getsockname()[:2]))
        opened.pop_all()
        return listeners, endpoints


def random_unix_name() -> str:
    """Return a name for `bind_unix` that no other socket has."""
    return f"hccl-{secrets.token_hex(16)}"


def bind_unix(name: str = "") -> socket.socket:
    """Bind a non-blocking Unix socket to a name without a file, a random one unless given."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(f"\0{name or random_unix_name()}")
    except OSError:
        bound.close()
        raise
    return bound


def has_ended(rank: Identity, unix_name: str, here: Identity) -> bool:
    """Return whether a rank's process is known to have ended, seen from `here`.

    Args:
        rank: identity of the rank.
        unix_name: socket that the rank keeps bound while it lives.
        here: identity of this process.
    """
    if rank.machine != here.machine:  # names are per machine
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(f"\0{unix_name}")
        except OSError:
            return False
    return True


def bind_to_device(bound: socket.socket, interface: str) -> None:
    """Bind a socket to an interface, if the kernel permits it.

    The routing table would use only one of two interfaces on the same network.
    """
    with contextlib.suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


def bind_listener(local: Endpoint, ports: range | None, first: int = 0) -> socket.socket:
    """Bind a non-blocking socket to an address: its port, or the first free one of a range.

    Ports below `first` are taken. BootstrapError: no port is free, or the address is in use.
    """
    for port in ports or (local.port,):
        if port and port < first:
            continue
        bound = socket.socket(address_family(local.host), socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            if port:
                # Connections of the last job may linger on the port. Two sockets with this option
                # can share a port until one listens, so this one listens at once.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((local.host, port))
            if port:
                bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            if is_of_signal_handler(error):
                raise
            if ports and error.errno == errno.EADDRINUSE:
                continue
            raise BootstrapError(
                f"cannot listen on {local}, port {port}: {error.strerror}"
            ) from error
        return bound
    assert ports is not None
    raise BootstrapError(
        f"every port of HCCL_PORT_RANGE={ports[0]}-{ports[-1]} is taken on {local}: it needs one "
        "for each rank of a machine, communicator and interface, and one for each process"
    )


class OpenSockets:
    """Connections whose copies a forked child closes.

    The engine closes broken connections, whose descriptors may name other files when the process
    forks. The socket's inode identifies it.
    """

    def __init__(self) -> None:
        self._inodes: dict[int, int] = {}

    def add(self, connection: Connection) -> None:
        """Remember an open connection."""
        descriptor = connection if isinstance(connection, int) else connection.fd()
        self._inodes[descriptor] = os.fstat(descriptor).st_ino

    def close_copies(self) -> None:
        """Close the descriptors that still name the same socket."""
        for descriptor, inode in self._inodes.items():
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)


def peer_process(connected: socket.socket) -> tuple[int, int]:
    """Return the peer's process id and user id, from the kernel."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user, _ = _UCRED.unpack(credentials)
    return int(pid), int(user)
