"""The ports at which a run's ranks meet."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from hccl_py.bench.collective.ranks import free_ports

LIMITS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_free_ports_are_several_and_none_that_others_get_to_use() -> None:
    lowest = int(LIMITS.read_text().split()[0])
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(10_000 <= port < lowest for port in ports)


def test_free_ports_passes_over_those_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(random, "sample", lambda *_: [port])
        (other,) = free_ports(1)
    assert other not in (0, port)
    assert free_ports(1) == [port]
