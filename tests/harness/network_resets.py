"""Resets a connection as the network does: both ends get an error, and neither process an end."""

from __future__ import annotations

import ctypes


def reset(descriptor: int) -> None:
    """Reset a TCP connection of this process, whose descriptor stays its owner's."""
    unspecified = bytes(16)  # connect(AF_UNSPEC): the kernel sends a RST
    ctypes.CDLL(None).connect(descriptor, unspecified, len(unspecified))
