"""A ZeroMQ socket under CURVE, its keys, and the events of its monitor."""

import struct
from typing import NamedTuple

import zmq

_HANDSHAKE_MS = 10_000
LINGER_MS = 100
_KEEPALIVE_S = 10
_QUEUED_MESSAGES = 64
_EVENT = struct.Struct("=HI")


class KeyPair(NamedTuple):
    """The public and the secret CURVE key of this end, in Z85."""

    public: bytes
    secret: bytes


def curve_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, keys: KeyPair, max_message_bytes: int
) -> "zmq.Socket[bytes]":
    """Make a socket that encrypts, and drops connections that announce larger messages."""
    made = context.socket(kind)
    made.curve_publickey, made.curve_secretkey = keys
    made.linger = LINGER_MS
    made.maxmsgsize = max_message_bytes
    made.set_hwm(_QUEUED_MESSAGES)
    made.handshake_ivl = _HANDSHAKE_MS
    made.tcp_keepalive = 1
    made.tcp_keepalive_idle = made.tcp_keepalive_intvl = _KEEPALIVE_S
    return made


def receive_event(monitor: "zmq.Socket[bytes]") -> tuple[int, int]:
    """Return the next event of a monitor and its value; zmq.Again: there is none.

    As pyzmq's `recv_monitor_message`, whose module imports all of asyncio.
    """
    event, value = _EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
    return int(event), int(value)
