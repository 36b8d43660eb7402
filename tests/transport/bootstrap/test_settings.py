"""What the environment may say about the network, and what is refused."""

import os
import socket

import pytest
from thread_ranks import ThreadRanks

from hccl_py.transport.bootstrap import mesh
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.secret import read_secret, weakness
from hccl_py.transport.network.settings import NetworkSettings

VARIABLES = [
    "HCCL_SOCKET_IFNAME",
    "HCCL_SOCKET_FAMILY",
    "HCCL_CONNECTIONS",
    "HCCL_PORT_RANGE",
    "HCCL_SECRET",
    "HCCL_TRANSPORT",
    "HCCL_TLS",
    "MASTER_ADDR",
    "HCCL_CHECKSUM",
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_settings_unset_or_empty_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NetworkSettings.from_environment() == NetworkSettings()
    for name in VARIABLES:
        if name != "HCCL_SECRET":
            monkeypatch.setenv(name, "")
    assert NetworkSettings.from_environment() == NetworkSettings()


def test_settings_all_are_read_and_the_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ["eth", "AF_INET6", "4", "20000-20003", "open sesame", "tcp", "1", "head", "1"]
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    settings = NetworkSettings.from_environment()
    assert settings == NetworkSettings(
        "head", "eth", socket.AF_INET6, range(20000, 20004), 4, b"open sesame", True, "tcp", True
    )
    assert "sesame" not in repr(settings)


def test_settings_of_paths_mean_nothing_to_a_provider_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", "zmq")
    monkeypatch.setenv("HCCL_CONNECTIONS", "4")
    assert NetworkSettings.from_environment().num_connections == 1
    monkeypatch.setenv("HCCL_TLS", "1")
    with pytest.raises(InvalidArgumentError, match="HCCL_TLS: expected 0 with HCCL_TRANSPORT=zmq"):
        NetworkSettings.from_environment()


@pytest.mark.parametrize(
    "name, value",
    [
        ("HCCL_SOCKET_FAMILY", "inet"),
        ("HCCL_CONNECTIONS", "0"),
        ("HCCL_CONNECTIONS", "33"),
        ("HCCL_CONNECTIONS", "two"),
        ("HCCL_CONNECTIONS", "-1"),
        ("HCCL_PORT_RANGE", "20000"),
        ("HCCL_PORT_RANGE", "20100-20000"),
        ("HCCL_PORT_RANGE", "0-10"),
        ("HCCL_PORT_RANGE", "65535-65536"),
        ("HCCL_PORT_RANGE", "20000-20100-20200"),
        ("HCCL_TLS", "yes"),
        ("HCCL_CHECKSUM", "true"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=f"{name}: expected .*, got '{value}'"):
        NetworkSettings.from_environment()


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_secret_empty_is_refused(monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    with pytest.raises(InvalidArgumentError, match="HCCL_SECRET: expected .* got an empty one"):
        read_secret({"HCCL_SECRET": empty})
    monkeypatch.setenv("HCCL_SECRET", "")
    with pytest.raises(InvalidArgumentError, match="HCCL_SECRET"):
        NetworkSettings.from_environment()


def test_secret_of_any_bytes_is_read() -> None:
    secret = b"\xff\xfe caf\xc3\xa9"
    assert read_secret({"HCCL_SECRET": os.fsdecode(secret)}) == secret
    assert read_secret({}) is None and weakness(None) == ""


@pytest.mark.parametrize("secret, is_weak", [(b"x", True), (b"y" * 15, True), (b"y" * 16, False)])
def test_secret_below_16_bytes_is_weak_and_not_shown(secret: bytes, is_weak: bool) -> None:
    assert bool(weakness(secret)) is is_weak
    assert "yy" not in weakness(secret)


@pytest.mark.parametrize("by_launcher", [False, True])
def test_secret_that_is_weak_is_warned_of_once_by_rank_0_unless_the_launcher_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by_launcher: bool
) -> None:
    monkeypatch.setenv("HCCL_SECRET", "open sesame")
    if by_launcher:
        monkeypatch.setenv("HCCL_PROGRESS_FILE", "/dev/null")
    mesh._warn_once.cache_clear()
    for _ in range(2):
        with ThreadRanks("ab") as ranks:
            assert ranks.run(lambda comm: comm.rank) == [0, 1]
    warned = [record.getMessage() for record in caplog.records if "HCCL_SECRET" in record.msg]
    assert len(warned) == (not by_launcher)
    assert "sesame" not in caplog.text
