"""Whose connections to a port of ours have just ended: what the kernel still tells of them."""

import contextlib
import ipaddress
import sys
from collections.abc import Collection

from .line import describe_target

_ESTABLISHED, _LISTENING = "01", "0A"


def recently_closed(ports: Collection[int]) -> str | None:
    """Return the other end of a connection to one of these ports that is about to be forgotten.

    A connection that was reset leaves no trace; one that was closed does for a minute.
    """
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/thread-self/net/{table}") as lines:
            next(lines)
            for line in lines:
                _, local, remote, state, *_ = line.split()
                if state in (_ESTABLISHED, _LISTENING):
                    continue
                if int(local.rpartition(":")[2], 16) in ports:
                    return describe_target(_endpoint(remote))
    return None


def _endpoint(text: str) -> tuple[str, int]:
    """Read an address as the kernel prints it: words of four bytes, in this machine's order."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8]) for at in range(0, len(host), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)
