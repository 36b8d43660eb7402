"""What host names mean on this node."""

import ipaddress
import socket
import threading
from collections.abc import Iterable

from hccl_py.transport.deadline import Deadline

Resolved = list[str] | str
"""The addresses of a name, or why it has none."""


def resolve(names: Iterable[str], timeout_s: float) -> dict[str, Resolved]:
    """Return what each name resolves to; a name server that does not answer costs the timeout.

    All names are asked for at once: the system's resolver may take half a minute for one.
    """
    found: dict[str, Resolved] = {}
    asked = {
        name: threading.Thread(target=_resolve, args=(name, found), daemon=True)
        for name in dict.fromkeys(names)
        if name
    }
    for thread in asked.values():
        thread.start()
    deadline = Deadline(timeout_s)
    for thread in asked.values():
        thread.join(deadline.remaining_s)
    silent = f"no name server answered within {timeout_s:g} s"
    return {name: found.get(name, silent) for name in asked}


def is_loopback(resolved: Resolved) -> bool:
    """Say whether a name means the host that asked, as Debian's 127.0.1.1 does."""
    return not isinstance(resolved, str) and any(
        ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in resolved
    )


def _resolve(name: str, found: dict[str, Resolved]) -> None:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        found[name] = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    except (OSError, UnicodeError) as error:
        found[name] = getattr(error, "strerror", None) or str(error)
