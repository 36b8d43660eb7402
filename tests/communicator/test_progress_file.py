"""The file in which a rank says how far it is."""

import json
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from hccl_py.progress_file import VARIABLE, ProgressFile
from hccl_py.transport.errors import CollectiveTimeoutError, CommunicatorError, PeerLostError


@pytest.mark.parametrize(("stall_s", "period_s"), [("1", 0.25), ("30", 1.0), ("0", 1.0)])
def test_file_is_written_several_times_before_a_rank_counts_as_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stall_s: str, period_s: float
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "progress"))
    monkeypatch.setenv("HCCL_STALL_WARNING_S", stall_s)
    file = ProgressFile()
    file.note_connecting()
    file.follow(Mock())
    before_s = time.monotonic()
    file.turn()
    assert before_s + period_s <= file.next_s() <= time.monotonic() + period_s
    file.leave_to_parent()


@pytest.mark.parametrize(
    ("error", "ranks", "blames"),
    [
        (PeerLostError(), None, 1),
        (PeerLostError(), (4, 7), 7),
        (CollectiveTimeoutError(), None, None),
    ],
)
def test_rank_that_an_error_names_is_written_before_the_error_is_raised(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: CommunicatorError,
    ranks: tuple[int, ...] | None,
    blames: int | None,
) -> None:
    path = tmp_path / "progress"
    monkeypatch.setenv(VARIABLE, str(path))
    file = ProgressFile()
    file.note_connecting()
    file.follow(Mock())
    file.turn()
    error.rank = 1
    file.note_error(error, Mock(global_ranks=ranks))
    for _ in range(2):
        assert json.loads(path.read_text().split("\n")[0].split(" ", 1)[1])["blames"] == blames
        file.turn()
    file.leave_to_parent()
