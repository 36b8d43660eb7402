"""Which of several causes is the first one, and what the verdict says of it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from hccl_py.diagnosis import Cause, Judge, Verdict
from hccl_py.diagnosis.record import Failure, PathTrouble, Stage
from hccl_py.fingerprint import pack
from hccl_py.transport.types import DType, ReduceOp

PLACES = [("h", 100 + rank) for rank in range(4)]
CALL = pack("all_reduce", None, int(DType.FLOAT32), int(ReduceOp.SUM), 1000)
OTHER = pack("broadcast", 0, int(DType.FLOAT32), int(ReduceOp.SUM), 1000)
NAME = "all_reduce(sum, float32[1000])"
AT = Stage("recv", 1, 2)

Report = dict[str, Any]


def report(cause: Cause | None = None, rank: int = -1, sequence: int = 17, **others: Any) -> Report:
    """Return what a rank in the middle of a call says; without a cause it was only asked."""
    progress = {
        "submitted": sequence,
        "sequence": sequence,
        "fingerprint": CALL | sequence,
        "bytes_done": 10,
        "bytes_total": 4000,
        "activity": "recv",
        "step": 1,
        "num_steps": 2,
        "waiting_for": [rank] if rank >= 0 else [],
        **others.pop("progress", {}),
    }
    state = {
        name: others.pop(name) for name in ("gone", "elsewhere", "timeout_s") if name in others
    }
    failure = None
    if cause is not None:
        failure = Failure(cause, rank, CALL | sequence, sequence, **others).packed()
    return {"failure": failure, "progress": progress, **state}


def died(rank: int, **others: Any) -> Report:
    return report(Cause.DIED, rank, **{"gone": [[rank, Cause.DIED, 0]], **others})


def left(rank: int, last_sequence: int, **others: Any) -> Report:
    gone = [[rank, Cause.LEFT, last_sequence]]
    return report(Cause.LEFT, rank, last_sequence=last_sequence, gone=gone, **others)


RANKED = [
    (Cause.MISMATCH, 2, report(Cause.MISMATCH, 2, their_call=OTHER | 17)),
    (Cause.UNCAUGHT_EXCEPTION, 1, report(Cause.UNCAUGHT_EXCEPTION, 1, reason="ValueError: x")),
    (Cause.INTERNAL_ERROR, 1, report(Cause.INTERNAL_ERROR, 1, reason="no memory")),
    (Cause.INTERRUPTED, 1, report(Cause.INTERRUPTED, 1)),
    (Cause.ABORTED, 1, report(Cause.ABORTED, 1, reason="stop")),
    (Cause.CLOSED, 1, report(Cause.CLOSED, 1)),
    (Cause.DIED, 3, died(3)),
    (Cause.LEFT, 3, left(3, 16)),
    (Cause.LOST, 3, report(Cause.LOST, 3, gone=[[3, Cause.LOST, 0]])),
    (Cause.UNREACHABLE, 3, report(Cause.UNREACHABLE, 3, error="reset")),
    (Cause.TIMED_OUT, 3, report(Cause.TIMED_OUT, 3, waiting_for=[3], stage=AT)),
]
"""From the cause that outweighs all others to the weakest."""


@pytest.mark.parametrize("weaker", range(1, len(RANKED)))
@pytest.mark.parametrize("stronger", range(len(RANKED) - 1))
def test_stronger_cause_wins_whoever_reports_it(stronger: int, weaker: int) -> None:
    if stronger >= weaker:
        return
    cause, rank, first = RANKED[stronger]
    reports = {1: first, 0: RANKED[weaker][2]}
    verdict = Judge(PLACES).decide(reports, {2: "no answer", 3: "no answer"})
    assert (verdict.cause, verdict.rank) == (cause, rank)
    assert (verdict.host, verdict.pid) == PLACES[rank]
    assert (verdict.collective, verdict.sequence) == (NAME, 17)
    assert verdict.text.startswith(f"{NAME} number 17: ")


def test_rank_that_said_why_it_goes_is_quoted_by_the_verdict_on_its_death() -> None:
    reports = {
        1: report(Cause.UNCAUGHT_EXCEPTION, 1, reason="ValueError: x"),
        0: died(1),
        2: died(1),
    }
    verdict = Judge(PLACES).decide(reports, {3: "dead"})
    assert (
        verdict.text == f"{NAME} number 17: rank 1 (host h, pid 101) failed: uncaught ValueError: x"
    )


def test_ranks_that_died_together_are_all_named() -> None:
    reports = {1: died(0), 3: died(2)}
    verdict = Judge(PLACES).decide(reports, {0: "dead", 2: "dead"})
    assert verdict.rank == 0
    assert verdict.text == (
        f"{NAME} number 17: ranks 0 (host h, pid 100) and 2 (host h, pid 102) died: their "
        "connections closed without a goodbye; look at the output of rank 0 first"
    )


LIVES = "can be reached no more: a connection closed, though its process lives"


def test_connection_that_closed_between_two_who_live_is_no_death() -> None:
    reports = {one: report(Cause.UNREACHABLE, 3 - one, process_lives=True) for one in (1, 2)}
    reports[0] = report()
    verdict = Judge(PLACES).decide(reports, {3: "no answer"})
    assert (verdict.cause, verdict.rank) == (Cause.UNREACHABLE, 1)
    assert verdict.text == (
        f"{NAME} number 17: rank 1 (host h, pid 101) {LIVES}; "
        "look at the output of ranks 1, 2 first"
    )


def test_rank_that_answered_and_died_since_is_dead() -> None:
    both = died(1, gone=[[1, Cause.DIED, 0], [2, Cause.DIED, 0]])
    verdict = Judge(PLACES).decide({0: both, 2: died(1)}, {1: "dead", 3: "no answer"})
    assert (verdict.cause, verdict.rank) == (Cause.DIED, 1)
    assert "ranks 1 (host h, pid 101) and 2 (host h, pid 102) died" in verdict.text


def test_first_call_that_could_not_end_is_named() -> None:
    reports = {0: died(3, sequence=18), 1: died(3, sequence=17), 2: report(sequence=19)}
    assert Judge(PLACES).decide(reports, {3: "dead"}).sequence == 17


def test_clean_leave_says_after_which_collective() -> None:
    verdict = Judge(PLACES).decide({0: left(3, 41, sequence=42)}, {3: "left after collective 41"})
    assert (
        "rank 3 (host h, pid 103) left after collective 41 while others still call" in verdict.text
    )


def test_timeout_lists_who_came_who_did_not_and_how_far_the_slowest_got() -> None:
    reports = {
        0: report(Cause.TIMED_OUT, 1, timeout_s=1.5, progress={"bytes_done": 3000}),
        1: report(sequence=16, progress={"submitted": 16}),
        2: report(Cause.TIMED_OUT, 1, timeout_s=1.5, progress={"bytes_done": 2000}),
    }
    verdict = Judge(PLACES).decide(reports, {3: "silent for 2.0 s"})
    assert (verdict.rank, verdict.cause) == (3, Cause.TIMED_OUT)
    for part in (
        f"{NAME} number 17: Timed out after 1.5 s: ",
        "rank 3 (host h, pid 103) is stopped, or busy without a break: silent for 2.0 s; ",
        f"rank 1 (host h, pid 101), which is still in {NAME} number 16, has not arrived; ",
        "ranks 0, 2 have arrived; ",
        "the slowest of them, rank 2, is at step 1 of 2 (recv), with 2000 of 4000 bytes done, "
        "waiting for rank 1; ",
    ):
        assert part in verdict.text


@pytest.mark.parametrize(
    ("report_of_late", "occupation"),
    [
        ({"progress": {"sequence": 0, "submitted": 16}}, "computing"),
        ({"progress": {"sequence": 0, "submitted": 16, "num_transfers": 2}}, "in a send or recv"),
        (
            {"progress": {"sequence": 0, "submitted": 16}, "elsewhere": ["barrier() of group x"]},
            "in barrier() of group x",
        ),
    ],
)
def test_timeout_says_what_the_late_do_instead(
    report_of_late: dict[str, Any], occupation: str
) -> None:
    reports = {0: report(Cause.TIMED_OUT, 1), 1: report(**report_of_late)}
    text = Judge(PLACES[:2]).decide(reports, {}).text
    assert f"rank 1 (host h, pid 101), which is {occupation}, has not arrived" in text


def test_timeout_does_not_take_a_cut_line_for_a_stopped_process() -> None:
    path = PathTrouble(1, "eth0 10.0.0.1 -> 10.0.0.2", True, 1.9, "")
    late = report(Cause.TIMED_OUT, 1, waiting_for=[1], stage=AT, paths=[path])
    verdict = Judge(PLACES[:2]).decide({0: late}, {1: "silent for 2.0 s"})
    assert "rank 1 (host h, pid 101) is out of reach: silent for 2.0 s; " in verdict.text
    assert f"rank 0, to rank 1: {path}; " in verdict.text


def test_nothing_proposed_is_no_verdict() -> None:
    with pytest.raises(ValueError):
        Judge(PLACES).decide({0: report(), 1: report()}, {})


@pytest.mark.parametrize("cause", Cause)
def test_verdict_and_record_come_out_as_they_went_in(cause: Cause) -> None:
    path = PathTrouble(1, "eth0", False, 1.9, "reset")
    failure = Failure(cause, 3, CALL, 17, stage=AT, paths=[path], waiting_for=[1], signal=9)
    assert Failure.unpacked(msgpack.unpackb(msgpack.packb(failure.packed()))) == failure
    verdict = Judge(PLACES).decide({0: {"failure": failure.packed()}}, {})
    assert Verdict.unpacked(verdict.packed()) == verdict


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ({"signal": 9}, "killed by signal 9 (SIGKILL)"),
        ({"exit_code": 3}, "its process ended with exit code 3"),
        ({}, "its connections closed without a goodbye"),
    ],
)
def test_death_says_how_the_process_ended(end: dict[str, int], how: str) -> None:
    text = Judge(PLACES).decide({0: died(3, **end)}, {3: "dead"}).text
    assert f"rank 3 (host h, pid 103) died: {how}; " in text


def test_rank_of_another_node_is_lost_until_its_node_confirms() -> None:
    lost = report(Cause.LOST, 3, gone=[[3, Cause.LOST, 0]])
    verdict = Judge(PLACES).decide({0: lost, 1: lost}, {3: "dead"})
    assert (verdict.cause, verdict.rank) == (Cause.LOST, 3)
    beside = report(gone=[[3, Cause.DIED, 0]])
    assert Judge(PLACES).decide({0: lost, 2: beside}, {3: "dead"}).cause is Cause.DIED
