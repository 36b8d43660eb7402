"""HCCL_SECRET: an empty one is refused, a short one is warned of, and none is shown."""

import os

import pytest
from thread_ranks import ThreadRanks

from hccl_py.transport.bootstrap import mesh
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.secret import read_secret, weakness
from hccl_py.transport.network.settings import NetworkSettings


def test_secret_unset_is_none() -> None:
    assert read_secret({}) is None
    assert weakness(None) == ""


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
