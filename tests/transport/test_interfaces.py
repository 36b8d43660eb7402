"""Which interface and address is chosen."""

import socket

import pytest

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.interfaces import (
    Interface,
    choose_address,
    is_loopback,
    list_interfaces,
    select_interfaces,
)

INTERFACES = tuple(
    Interface(name, (f"10.0.0.{index}",))
    for index, name in enumerate(["eth0", "eth1", "eth10", "ib0", "docker0", "lo"])
)


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("eth1", ["eth1"]),
        ("eth", ["eth0", "eth1", "eth10"]),
        ("ib,eth1", ["ib0", "eth1"]),
        ("ib0, eth0", ["ib0", "eth0"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("=eth10,ib0", ["eth10", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "eth10", "ib0"]),
        ("^eth1", ["eth0", "ib0", "docker0", "lo"]),
        ("^=eth1", ["eth0", "eth10", "ib0", "docker0", "lo"]),
        ("wlan", []),
        ("eth0,", ["eth0"]),
    ],
)
def test_select_interfaces_pattern_picks_names_in_order(pattern: str, names: list[str]) -> None:
    assert [one.name for one in select_interfaces(pattern, INTERFACES)] == names


def test_list_interfaces_shows_loopback_last_with_its_address() -> None:
    last = list_interfaces()[-1]
    assert last.name == "lo"
    assert "127.0.0.1" in last.addresses


@pytest.mark.parametrize(
    "host, address", [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", None)]
)
def test_choose_address_loopback_rendezvous_stays_on_loopback(
    host: str, address: str | None
) -> None:
    chosen = choose_address(host, None)
    assert is_loopback(chosen)
    assert address in (chosen, None)


@pytest.mark.parametrize("host", [None, "no-such-host.invalid"])
def test_choose_address_without_usable_rendezvous_can_be_bound(host: str | None) -> None:
    chosen = choose_address(host, None)
    family = socket.AF_INET6 if ":" in chosen else socket.AF_INET
    with socket.socket(family) as bound:
        bound.bind((chosen, 0))


def test_choose_address_pattern_overrides_the_route() -> None:
    assert choose_address("192.0.2.1", "=lo") == "127.0.0.1"
    assert choose_address("::1", "lo") == "::1"


def test_choose_address_pattern_without_match_lists_interfaces() -> None:
    with pytest.raises(BootstrapError, match=r"HCCL_SOCKET_IFNAME=nosuch matches no.*lo \(127"):
        choose_address(None, "nosuch")
