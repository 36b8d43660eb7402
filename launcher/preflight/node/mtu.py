"""The largest packet that passes to another node without being cut into fragments.

Datagrams of many sizes go at once, and the other side says over TCP which ones came: it sends no
datagram itself, so a stranger gets none from it.
"""

import contextlib
import socket
from collections.abc import Iterable

from hccl_py.launcher.preflight.node.wire import DATAGRAM_OFFER, DATAGRAMS, NUM_SIZES, SIZES, Wire

# Not in Python's socket module: the option to send unfragmented and to ignore what the kernel
# believes of the path, and the option that tells the size of a packet on the way's first link.
_MTU_DISCOVER = {socket.AF_INET: 10, socket.AF_INET6: 23}
_PROBE = 3
_MTU = {socket.AF_INET: 14, socket.AF_INET6: 24}
_HEADER_BYTES = {socket.AF_INET: 28, socket.AF_INET6: 48}
_LEAST_BYTES = {socket.AF_INET: 576, socket.AF_INET6: 1280}  # every network carries these
_MOST_BYTES = 65535
_SIZES_AT_ONCE = 8
_COPIES = 3


def largest_packet(wire: Wire, connection: socket.socket) -> tuple[int, int]:
    """Return the size of the first link's packets, and of the largest that come, in bytes.

    The second is 0 if no datagram comes at all: only TCP may be let through.
    """
    family = connection.family
    level = socket.IPPROTO_IP if family == socket.AF_INET else socket.IPPROTO_IPV6
    wire.send(DATAGRAMS)
    port, token = DATAGRAM_OFFER.unpack(wire.receive(DATAGRAM_OFFER.size))
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(level, _MTU_DISCOVER[family], _PROBE)
        sender.bind((connection.getsockname()[0], 0))
        sender.connect((connection.getpeername()[0], port))
        mtu = min(sender.getsockopt(level, _MTU[family]), _MOST_BYTES)
        headers = _HEADER_BYTES[family]

        def largest_of(packets: Iterable[int]) -> int:
            for size in packets:
                datagram = token.ljust(size - headers, b"\0")
                for _ in range(_COPIES):
                    with contextlib.suppress(OSError):  # larger than the interface sends
                        sender.send(datagram)
            wire.send(SIZES)
            (count,) = NUM_SIZES.unpack(wire.receive(NUM_SIZES.size))
            sizes = wire.receive(count * NUM_SIZES.size)
            return max((size + headers for (size,) in NUM_SIZES.iter_unpack(sizes)), default=0)

        passes = largest_of([min(_LEAST_BYTES[family], mtu), mtu])
        lost = mtu + 1 if passes == mtu else mtu
        while passes and lost - passes > 1:
            step = max(1, (lost - passes) // (_SIZES_AT_ONCE + 1))
            packets = range(passes + step, lost, step)[:_SIZES_AT_ONCE]
            came = largest_of(packets)
            lost = min((size for size in packets if size > came), default=lost)
            passes = max(passes, came)
        return mtu, passes
