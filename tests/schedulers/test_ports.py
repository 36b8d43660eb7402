"""A port that stays free until somebody listens there."""

import socket

import pytest

from hccl_py.schedulers import ports
from hccl_py.schedulers.ports import free_port


def lowest_ephemeral() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        chosen: int = any_port.getsockname()[1]
    with open("/proc/sys/net/ipv4/ip_local_port_range") as settings:
        lowest = int(settings.read().split()[0])
    assert chosen >= lowest, "the kernel itself chooses from there"
    return lowest


def test_free_port_is_none_that_others_get_to_use() -> None:
    lowest = lowest_ephemeral()
    for _ in range(20):
        port = free_port()
        assert port < lowest
        with socket.socket() as listener:
            listener.bind(("0.0.0.0", port))


def test_free_port_passes_over_those_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports.random, "sample", lambda *_: [port])
        assert free_port() not in (0, port)


def test_free_port_of_an_ipv6_address() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", free_port("::1")))
