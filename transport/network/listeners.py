"""The sockets on which ranks of other nodes reach this one: one per interface, each on its address.

They are bound before the rendezvous, because cards carry their addresses. Nobody is accepted before
the communicator's secret is known.
"""

import contextlib
import errno
import socket
from collections.abc import Sequence

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.interfaces import LocalAddress, address_family, choose_addresses
from hccl_py.transport.network.settings import NetworkSettings

BACKLOG = 4096


def bind_listeners(settings: NetworkSettings) -> tuple[list[socket.socket], list[Endpoint]]:
    """Bind a socket to each address that the settings choose.

    Returns:
        The sockets, non-blocking, the caller's to close; and where they are.

    Raises:
        BootstrapError: no interface matches, or an address or the whole port range is taken.
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


def bind_to_devices(listeners: Sequence[socket.socket], endpoints: Sequence[Endpoint]) -> None:
    """Have each listener's connections leave through its own interface, where that is permitted.

    Without it the routing table decides, which sends everything through one of two interfaces that
    share a network.
    """
    for listener, endpoint in zip(listeners, endpoints, strict=True):
        bind_to_device(listener, endpoint.interface)


def bind_to_device(bound: socket.socket, interface: str) -> None:
    """Tie a socket to an interface, where the kernel lets this user do so."""
    with contextlib.suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


def bind_listener(local: LocalAddress, ports: range | None) -> socket.socket:
    """Bind one socket to an address, and to the first free port of a range.

    Raises:
        BootstrapError: the address or the whole port range is taken.
    """
    if ports is None:
        return _bind_one(local, 0)
    for port in ports:
        try:
            return _bind_one(local, port)
        except BootstrapError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise
    raise BootstrapError(
        f"every port of HCCL_PORT_RANGE={ports[0]}-{ports[-1]} is taken on {local}: it needs one "
        "for each rank of a machine, communicator and interface, and one for each process"
    )


def _bind_one(local: LocalAddress, port: int) -> socket.socket:
    bound = socket.socket(address_family(local.address), socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        if port:
            # The last job's connections may still linger on the port. Two sockets that both set
            # the option can share a port until one listens, so this one does at once.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((local.address, port))
        if port:
            bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise BootstrapError(f"cannot listen on {local}, port {port}: {error.strerror}") from error
    return bound
