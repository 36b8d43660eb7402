"""Chooses a port for a process that listens later."""

import random
import socket

_LOWEST = 10_000
_MOST_TRIES = 64


def free_port(host: str = "0.0.0.0") -> int:
    """Choose a free port of a numeric address that no outgoing connection can take.

    The kernel may give ports of its ephemeral range to outgoing connections at any time.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as settings:
        below = range(_LOWEST, int(settings.read().split()[0]))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [*random.sample(below, min(len(below), _MOST_TRIES)), 0]:
        with socket.socket(family) as probe:
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise OSError(f"no port of {host} is free")
