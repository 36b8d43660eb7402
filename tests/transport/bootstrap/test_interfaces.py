"""Which interface and address is chosen."""

import socket
from typing import Any

import pytest

from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import choose_addresses, select_interfaces
from hccl_py.transport.network.settings import NetworkSettings

NAMES = ["eth0", "eth1", "eth10", "ib0", "docker0", "lo"]
INTERFACES = {name: [f"10.0.0.{index}"] for index, name in enumerate(NAMES)}


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
    assert select_interfaces(pattern, NAMES) == names


def choose(host: str | None, pattern: str | None = None, family: Any = None) -> list[str]:
    settings = NetworkSettings(host, pattern, family)
    return [local.host for local in choose_addresses(settings)]


def test_choose_addresses_every_match_is_a_path_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hccl_py.transport.network.interfaces.list_interfaces",
        lambda: INTERFACES | {"lo": ["127.0.0.1"]},
    )
    assert choose(None, "eth1,ib,docker0") == ["10.0.0.1", "10.0.0.3", "10.0.0.4"]
    assert choose(None, "eth") == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    # Loopback was not excluded, but nobody means it.
    assert choose(None, "^eth") == ["10.0.0.3", "10.0.0.4"]
    assert choose(None, "^eth,ib,docker") == ["127.0.0.1"]


def test_choose_addresses_of_a_job_on_one_host_takes_the_way_to_the_store_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"trainer": "10.0.0.7", "10.0.1.1": "10.0.1.2", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(
        "hccl_py.transport.network.interfaces._source_address", lambda host, _: ways.get(host)
    )
    monkeypatch.setattr("hccl_py.transport.network.interfaces.list_interfaces", dict)

    def chosen(master: str, store: str) -> str:
        settings = NetworkSettings(master, store_host=store)
        return choose_addresses(settings)[0].host

    assert chosen("127.0.0.1", "trainer") == "10.0.0.7"
    assert chosen("127.0.0.1", "127.0.0.1") == "127.0.0.1"
    assert chosen("10.0.1.1", "trainer") == "10.0.1.2"


@pytest.mark.parametrize(
    "pattern, family, message",
    [
        ("nosuch", None, r"HCCL_SOCKET_IFNAME=nosuch matches no.*fe80::.*lo \(127"),
        ("eth0", socket.AF_INET6, "=eth0 and HCCL_SOCKET_FAMILY=AF_INET6 match.*ib0 .10.0.0.3"),
    ],
)
def test_choose_addresses_without_match_lists_interfaces(
    pattern: str, family: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family is not None:
        monkeypatch.setattr(
            "hccl_py.transport.network.interfaces.list_interfaces", lambda: INTERFACES
        )
    with pytest.raises(BootstrapError, match=message):
        choose(None, pattern, family)
