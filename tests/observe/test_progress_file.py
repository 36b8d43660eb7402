"""The file in which a rank says how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from hccl_py.observe.progress_file import VARIABLE, ProgressFile


@pytest.mark.parametrize(("stall_s", "period_s"), [("1", 0.25), ("30", 1.0), ("0", 1.0)])
def test_file_is_written_several_times_before_a_rank_counts_as_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stall_s: str, period_s: float
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "progress"))
    monkeypatch.setenv("HCCL_STALL_WARNING_S", stall_s)
    file = ProgressFile()
    file.follow(Mock())
    before_s = time.monotonic()
    file.turn()
    assert before_s + period_s <= file.next_s() <= time.monotonic() + period_s
    file.leave_to_parent()
