"""What the log says about rejected connections, and how little under a flood."""

import pytest

from hccl_py.transport.network.rejections import Rejections

NOISE = "it does not speak this protocol"


def test_rejections_address_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Rejections("rank 3")
    for port in range(10_000):
        refusals.note(f"10.0.0.9:{port}", NOISE)
    refusals.note("10.0.0.9:1", "it is silent")
    refusals.note("unix socket of pid 7", NOISE)
    refusals.log_rest()
    refusals.log_rest()
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 3 rejected a connection from 10.0.0.9:0: {NOISE}",
        "rank 3 rejected a connection from 10.0.0.9:1: it is silent",
        f"rank 3 rejected a connection from unix socket of pid 7: {NOISE}",
        f"rank 3 rejected 9999 more connections, the last from 10.0.0.9:9999: {NOISE}",
    ]


def test_rejections_many_addresses_and_reasons_stay_few_lines_and_little_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Rejections("rank 0")
    for i in range(5_000):
        refusals.note(f"[fd00::{i:x}]:{i}", f"it speaks version {i}")
    assert len(caplog.records) == 16
    assert len(refusals.summary()) < 300
    assert "(other reasons)" in refusals.summary()


def test_rejections_next_period_tells_what_was_left_and_has_room_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hccl_py.transport.network.rejections._PERIOD_S", 0.0)
    refusals = Rejections("rank 0")
    for i in range(100):
        refusals.note(f"10.0.{i}.1:80", NOISE)
    refusals.note("10.0.0.1:81", NOISE)
    refusals.note("10.1.0.1:80", NOISE)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 102
    assert lines[-2:] == [
        f"rank 0 rejected 1 more connections, the last from 10.0.0.1:81: {NOISE}",
        f"rank 0 rejected a connection from 10.1.0.1:80: {NOISE}",
    ]
