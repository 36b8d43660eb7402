"""Queue pairs over a provider that is written in Python: a communicator of two with one lane.

Such a provider has to know its rank before it listens, and its cards must not be forged. So an
authenticated TCP connection comes first, over which the two ends exchange their cards.
"""

import hmac
import socket
import struct
from collections.abc import Callable

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.handshake import Party
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.providers.interface import MAX_PROVIDER_CARD_BYTES, Provider, Site

from ..deadline import Deadline
from ..errors import BootstrapError
from .sockets import RendezvousEndpoint

_FRAME_HEADER = struct.Struct("!I32s")


class PythonProviderEndpoint(RendezvousEndpoint):
    """One end of a connection over any provider of `provider.py`."""

    def __init__(self, make: Callable[[Site], Provider]) -> None:
        """Listen for the other end; `make` is the provider's class."""
        super().__init__()
        self._make = make

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect with an end anywhere."""
        deadline = Deadline(timeout_s)
        party, rendezvous = self.connect_socket(remote, deadline.remaining_s)
        with rendezvous:
            here = rendezvous.getsockname()[0]
            ports = NetworkSettings.from_environment().ports
            provider = self._make(Site(party.rank, 2, 1, here, ports))
            try:
                rendezvous.settimeout(deadline.remaining_s)
                cards = _exchange(party, rendezvous, provider.card())
                [lane] = provider.connect(cards, deadline)[1 - party.rank]
            except BaseException:
                provider.close()
                raise
        return _core.python_underlying_lane(provider, lane)


def _exchange(party: Party, rendezvous: socket.socket, card: bytes) -> list[bytes]:
    cards = [card, card]
    peer = 1 - party.rank
    try:
        mac = party.sign(b"card %d" % party.rank, card)
        rendezvous.sendall(_FRAME_HEADER.pack(len(card), mac) + card)
        num_bytes, mac = _FRAME_HEADER.unpack(_receive(rendezvous, _FRAME_HEADER.size))
        if num_bytes > MAX_PROVIDER_CARD_BYTES:
            raise BootstrapError(f"the peer's card has {num_bytes} bytes")
        cards[peer] = _receive(rendezvous, num_bytes)
    except OSError as error:
        raise BootstrapError(f"exchanging cards with the peer: {error}") from error
    if not hmac.compare_digest(mac, party.sign(b"card %d" % peer, cards[peer])):
        raise BootstrapError("the peer's card was forged on its way")
    return cards


def _receive(rendezvous: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        part = rendezvous.recv(num_bytes - len(received))
        if not part:
            raise BootstrapError("the peer closed the connection; look at its log first")
        received += part
    return received
