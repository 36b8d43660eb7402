"""What host names mean on this node."""

import ipaddress
from collections.abc import Iterable

from hccl_py.launcher.lookups import addresses_of, in_threads

Resolved = list[str] | str
"""The addresses of a name, or why it has none."""


def resolve(names: Iterable[str], timeout_s: float) -> dict[str, Resolved]:
    """Return what each name resolves to; a name server that does not answer costs the timeout."""
    asked = [name for name in dict.fromkeys(names) if name]
    silent = f"no name server answered within {timeout_s:g} s"
    found = in_threads(addresses_of, asked, timeout_s)
    return {name: one or silent for name, one in zip(asked, found, strict=True)}


def is_loopback(resolved: Resolved) -> bool:
    """Say whether a name means the host that asked, as Debian's 127.0.1.1 does."""
    return not isinstance(resolved, str) and any(
        ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in resolved
    )
