"""The numbers of the status line."""

from __future__ import annotations

from hccl_py.launcher.progress.rank_progress import RankProgress
from hccl_py.launcher.progress.status_line import StatusLine


def ranks(steps: int, collectives: int, num_bytes: int) -> list[RankProgress]:
    """Return two ranks, of which one is a step behind."""
    return [
        RankProgress(0, "a", 1, steps, collectives, num_bytes, 0.0, "", ()),
        RankProgress(1, "b", 2, max(0, steps - 1), collectives, num_bytes, 0.0, "", ()),
    ]


def test_rates_begin_with_the_first_collective_and_follow_the_last_seconds() -> None:
    status = StatusLine()
    assert status.is_due(100.0)
    assert status.line(ranks(0, 0, 0), 100.0) == ""
    assert not status.is_due(100.9)
    assert status.line(ranks(10, 100, 10**9), 3700.0) == ""
    assert (
        status.line(ranks(16, 1780, 3 * 10**9), 3702.0)
        == "steps 16, 3.0/s | 2.00 GB/s in 840 collectives/s | 01:00:02"
    )
    for second in range(20):
        line = status.line(ranks(16, 1780, 3 * 10**9), 3703.0 + second)
    assert line == "steps 16, 0.0/s | 0.00 GB/s in 0 collectives/s | 01:00:22"


def test_job_without_optimizer_shows_no_steps() -> None:
    status = StatusLine()
    status.is_due(0.0)
    status.line(ranks(0, 0, 10), 1.0)
    assert status.line(ranks(0, 5, 10), 2.0) == "0.00 GB/s in 5 collectives/s | 00:00:02"


def test_a_rank_that_has_ended_still_counts() -> None:
    status = StatusLine()
    status.is_due(0.0)
    first, second = ranks(10, 20, 10**9)
    status.line([first, second], 1.0)
    assert status.line([second], 2.0) == "steps 10, 0.0/s | 0.00 GB/s in 0 collectives/s | 00:00:02"
