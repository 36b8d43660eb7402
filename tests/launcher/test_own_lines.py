"""Waits of the launcher are said, and end."""

import pytest

from hccl_py.launcher import own_lines
from hccl_py.launcher.own_lines import keep_trying


def fail() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def test_attempt_that_goes_on_failing_is_said_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_lines, "_FIRST_LINE_S", 0.0)
    with pytest.raises(
        TimeoutError, match=r"^no answer \(Connection refused\), after 1 s \(--conn"
    ):
        keep_trying(fail, "no answer", 0.6)
    assert capsys.readouterr().err == (
        "hccl-launch: no answer (Connection refused); trying for 1 s more (--connect-timeout)\n"
    )


def test_attempt_that_works_at_last_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    attempts = iter((fail, fail, lambda: None))
    keep_trying(lambda: next(attempts)(), "no answer", 60.0)
    assert list(attempts) == []
    assert capsys.readouterr().err == ""
