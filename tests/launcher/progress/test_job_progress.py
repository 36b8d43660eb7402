"""Which ranks are named as stuck, when, and in what order."""

from hccl_py.launcher.progress.job_progress import JobProgress, Outlets, StatusLine, sample_s
from hccl_py.launcher.progress.rank_progress import (
    CONNECTED,
    CONNECTING,
    STARTED,
    STOPPED,
    RankProgress,
)

CALL = "all_reduce number 7 of communicator 0"
STALL_S, LOOK_S = 30.0, 5.0


def rank(number: int, idle_s: float, call: str = "", *waiting_for: int) -> RankProgress:
    where = number, f"host{number}", 100 + number, CONNECTED
    return RankProgress(*where, 0, 0, 0, idle_s, call, waiting_for)


class Job:
    """Ranks, each on a host of its own, which the coordinator hears of one after the other."""

    def __init__(self, world_size: int) -> None:
        self.said: list[str] = []
        self.asked: list[tuple[int, int]] = []
        outlets = Outlets(self.said.append, None, lambda *asked: self.asked.append(asked))
        self.progress = JobProgress(outlets, STALL_S, LOOK_S, range(world_size))

    def sample(self, now_s: float, *ranks: RankProgress) -> str:
        """Take two looks at all ranks, and return what was said."""
        self.said.clear()
        self.asked.clear()
        for at_s in (now_s, now_s + 2 * LOOK_S):
            for one in ranks:
                self.progress.take(one.rank, [one], at_s)
        return "".join(self.said)


def test_rank_that_the_others_wait_for_is_named_first_and_its_stack_asked_for() -> None:
    job = Job(4)
    said = job.sample(
        30.0, rank(0, 20.0, CALL, 2), rank(1, 20.0, CALL, 0), rank(2, 31.0), rank(3, 0.0)
    )
    assert said.splitlines() == [
        "hccl-launch: no progress for 31 s (HCCL_STALL_WARNING_S sets how long)",
        "  rank 2 (host host2, pid 102) is in no collective, and neither computes nor prints",
        f"  ranks 0-1 wait for rank 2 in {CALL}",
    ]
    assert job.asked == [(2, 2)]


def test_rank_that_computes_while_others_wait_for_it_is_named_as_such() -> None:
    said = Job(2).sample(30.0, rank(0, 31.0, CALL, 1), rank(1, 0.0))
    assert "rank 1 (host host1, pid 101) is in no collective, and computes or prints" in said


def test_stopped_rank_is_called_stopped_even_inside_a_call() -> None:
    job, stopped = Job(2), rank(1, 31.0, CALL)._replace(phase=STOPPED)
    said = job.sample(30.0, rank(0, 31.0, CALL, 1), stopped)
    assert not job.asked, "a stopped process has no stack to show"
    assert said.splitlines()[1:] == [
        "  rank 1 (host host1, pid 101) is stopped; kill -CONT 101 there continues it",
        f"  rank 0 waits for rank 1 in {CALL}",
    ]


def test_ranks_that_are_all_in_calls_are_named_by_call() -> None:
    job = Job(2)
    said = job.sample(30.0, rank(0, 31.0, "A", 1), rank(1, 31.0, "B", 0))
    assert said.splitlines()[1:] == [
        "  rank 0 waits for rank 1 in A",
        "  rank 1 waits for rank 0 in B",
    ]
    assert job.asked == [(0, 0), (1, 1)]


def test_rank_that_ended_is_named_to_those_that_wait() -> None:
    job = Job(4)
    job.progress.end(3)  # the agent of the last rank, which ended well
    said = job.sample(30.0, rank(0, 31.0), rank(1, 31.0))
    assert "  ranks 2-3 have ended, with exit code 0" in said.splitlines()


def test_stall_is_named_once_and_after_progress_only_after_twice_the_time() -> None:
    job = Job(1)
    assert job.sample(30.0, rank(0, 29.0)) == ""
    assert job.sample(60.0, rank(0, 31.0)) != ""
    assert job.sample(90.0, rank(0, 300.0)) == ""
    assert job.sample(120.0, rank(0, 0.0)) == ""
    assert job.sample(150.0, rank(0, 59.0)) == ""
    assert job.sample(180.0, rank(0, 61.0)) != ""


def test_missing_py_spy_is_said_once() -> None:
    job = Job(1)
    for number in range(3):
        job.progress.take_stack(number, "")
    assert len(job.said) == 1
    assert "pip install py-spy" in job.said[0]


def test_agents_look_only_as_often_as_somebody_wants_to_know() -> None:
    assert sample_s(0.0, has_terminal=False) == 0.0
    assert sample_s(30.0, has_terminal=False) == LOOK_S
    assert sample_s(0.0, has_terminal=True) == sample_s(30.0, has_terminal=True) == 1.0
    assert sample_s(2.0, has_terminal=True) == 0.5


def ranks(steps: int, collectives: int, num_bytes: int) -> list[RankProgress]:
    """Return two ranks, of which one is a step behind."""
    return [
        RankProgress(0, "a", 1, CONNECTED, steps, collectives, num_bytes, 0.0, "", ()),
        RankProgress(1, "b", 2, CONNECTED, max(0, steps - 1), collectives, num_bytes, 0.0, "", ()),
    ]


def test_rates_begin_with_the_first_collective_and_follow_the_last_seconds() -> None:
    status = StatusLine()
    assert status.is_due(100.0)
    assert status.line(ranks(0, 0, 0), 100.0) == "ranks: 2 connected | 00:00:00"
    assert not status.is_due(100.9)
    assert status.line(ranks(10, 100, 10**9), 3700.0) == "ranks: 2 connected | 01:00:00"
    assert (
        status.line(ranks(16, 1780, 3 * 10**9), 3702.0)
        == "steps 16, 3.0/s | 2.00 GB/s in 840 collectives/s | 01:00:02"
    )
    for second in range(20):
        line = status.line(ranks(16, 1780, 3 * 10**9), 3703.0 + second)
    assert line == "steps 16, 0.0/s | 0.00 GB/s in 0 collectives/s | 01:00:22"


def test_line_shows_what_ranks_do_before_the_first_collective() -> None:
    status = StatusLine()
    status.is_due(0.0)
    first, second = ranks(0, 0, 0)
    both = [first._replace(phase=STARTED), second._replace(phase=STARTED)]
    assert status.line(both, 1.0) == "ranks: 2 started | 00:00:01"
    both[0] = first._replace(phase=CONNECTING)
    assert status.line(both, 2.0) == "ranks: 1 started, 1 connecting | 00:00:02"


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
