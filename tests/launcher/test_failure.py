"""Which of several failed ranks is the root cause, and how the report reads."""

import signal

import pytest

from hccl_py.launcher.failure import RankFailure, first_failure, render

RAISED = RankFailure(
    rank=1,
    node=0,
    local_rank=1,
    host="",
    pid=10,
    exit_code=1,
    kind="ValueError",
    message="ValueError: boom",
    traceback="Traceback (most recent call last):\nValueError: boom\n",
    at_s=100.0,
    log="",
)
VANISHED = RAISED._replace(rank=2, exit_code=-signal.SIGSEGV, kind="", message="", traceback="")
STOPPED = VANISHED._replace(rank=3, exit_code=-signal.SIGTERM, was_stopped=True)


def test_first_failure_is_the_earliest_that_raised() -> None:
    later = RAISED._replace(rank=0, at_s=100.001)
    assert first_failure([later, RAISED]) == RAISED


def test_first_failure_is_the_rank_that_vanished_though_peers_were_noticed_before() -> None:
    assert first_failure([RAISED, VANISHED._replace(at_s=100.05)]).rank == 2


def test_first_failure_is_not_a_rank_that_ended_because_another_raised() -> None:
    assert first_failure([RAISED, VANISHED._replace(at_s=100.5)]) == RAISED


@pytest.mark.parametrize("end", [RAISED, VANISHED, RAISED._replace(kind="SystemExit", message="")])
def test_first_failure_is_never_a_rank_that_blames_another_one(end: RankFailure) -> None:
    victim = end._replace(rank=0, at_s=90.0, blames=2)
    assert first_failure([victim, VANISHED]) == VANISHED
    assert first_failure([victim, STOPPED._replace(rank=2)]) == victim, "it did not fail itself"
    assert first_failure([victim, VANISHED._replace(blames=0)]) == victim, "each lost the other"


@pytest.mark.parametrize(
    "victim",
    [
        RAISED._replace(message="RuntimeError: Connection closed by peer [127.0.0.1]:4711"),
        RAISED._replace(message="ConnectionResetError: [Errno 104] Connection reset by peer"),
        VANISHED._replace(exit_code=-signal.SIGABRT, last_lines=("what(): Broken pipe",)),
    ],
)
def test_first_failure_is_never_a_rank_that_lost_a_connection(victim: RankFailure) -> None:
    root = VANISHED._replace(rank=7, at_s=101.0)
    assert first_failure([victim, root]) == root
    assert first_failure([victim]) == victim


def test_rank_that_a_stranger_stopped_failed() -> None:
    ended = STOPPED._replace(was_stopped=False)
    assert first_failure([RAISED._replace(at_s=101.0), ended]) == ended


def test_first_failure_is_never_a_rank_that_was_stopped() -> None:
    assert first_failure([STOPPED._replace(at_s=1.0), RAISED]) == RAISED
    assert first_failure([STOPPED]) == STOPPED


def test_render_puts_the_first_failure_last_and_whole() -> None:
    same = RAISED._replace(rank=5, at_s=101.0)
    lost = RAISED._replace(rank=0, at_s=102.0, kind="DistBackendError", message="lost")
    more = [lost._replace(rank=rank) for rank in (6, 7)]
    assert render([STOPPED, lost, same, *more, RAISED], 8).splitlines() == [
        "hccl-launch: after rank 1 failed: DistBackendError on ranks 0, 6-7; ValueError on rank 5; "
        "all other ranks were stopped",
        "hccl-launch: rank 5 then reported: ValueError: boom",
        "hccl-launch: rank 1 of 8 failed (node 0, local rank 1, pid 10, exit code 1)",
        "Traceback (most recent call last):",
        "ValueError: boom",
    ]


def test_render_without_a_record_quotes_the_last_lines_and_says_a_likely_reason() -> None:
    vanished = VANISHED._replace(
        host="b", log="/logs/rank_2.log", last_lines=("first", "last"), reason="memory"
    )
    assert render([vanished], 1).splitlines() == [
        "hccl-launch: rank 2 of 1 was killed by SIGSEGV (node 0 on b, local rank 1, pid 10)",
        "  log: /logs/rank_2.log",
        "  likely reason: memory",
        "first",
        "last",
    ]


def test_render_names_the_ranks_that_got_sigkill_while_they_saved() -> None:
    killed = [STOPPED._replace(rank=rank, was_killed=True) for rank in (3, 5)]
    first = render([RAISED, *killed], 8).splitlines()[0]
    assert "ranks 3, 5 did not end in time (--shutdown-timeout)" in first


def test_endless_message_is_cut_in_the_middle() -> None:
    said = RAISED._replace(traceback="Traceback" + 9999 * "x" + "end").cut(100).traceback
    assert len(said) < 200
    assert said.startswith("Traceback")
    assert said.endswith("end")


def test_render_of_many_failures_stays_short() -> None:
    others = [RAISED._replace(rank=rank, at_s=101.0, kind=f"E{rank}") for rank in range(2, 100)]
    lines = render([RAISED, *others], 100).splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("; 90 more ranks failed; all other ranks were stopped")
    assert max(map(len, lines)) < 400
