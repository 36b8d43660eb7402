"""Which of several causes is the first one, and what the verdict says of it."""

from __future__ import annotations

from typing import Any

import pytest

from hccl_py.diagnosis import Cause, Judge
from hccl_py.diagnosis.causes import (
    ABORTED,
    INTERNAL,
    INTERRUPTED_TEXT,
    MISMATCH,
    PEER_LOST,
    TIMED_OUT,
    cause_of,
    seal,
    unseal,
)
from hccl_py.fingerprint import pack
from hccl_py.transport.types import DType, ReduceOp

PLACES = [("h", 100 + rank) for rank in range(4)]
CALL = pack("all_reduce", None, int(DType.FLOAT32), int(ReduceOp.SUM), 1000)
OTHER = pack("broadcast", 0, int(DType.FLOAT32), int(ReduceOp.SUM), 1000)
NAME = "all_reduce(sum, float32[1000])"
DIED = (PEER_LOST, "died: its connections closed without a goodbye")

Report = dict[str, Any]


def report(
    kind: int = 0, text: str = "", rank: int = -1, sequence: int = 17, **others: Any
) -> Report:
    """Return what a rank in the middle of a call says; kind 0: it was only asked."""
    progress = {
        "submitted": sequence,
        "sequence": sequence,
        "fingerprint": CALL | sequence,
        "bytes_done": 10,
        "bytes_total": 4000,
        "position": "op 1 of 2",
        "waiting_for": [rank] if rank >= 0 else [],
        **others.pop("progress", {}),
    }
    proposal = [kind, rank, CALL | sequence, others.pop("received", 0), text, sequence]
    return {"proposal": proposal if kind else None, "progress": progress, **others}


def died(rank: int, **others: Any) -> Report:
    return report(*DIED, rank=rank, gone=[[rank, False, 0]], **others)


RANKED = [
    (Cause.MISMATCH, 2, report(MISMATCH, "", 2, received=OTHER | 17)),
    (Cause.EXCEPTION, 1, report(ABORTED, "uncaught ValueError: x", 1)),
    (Cause.INTERNAL, 1, report(INTERNAL, "no memory", 1)),
    (Cause.INTERRUPTED, 1, report(ABORTED, INTERRUPTED_TEXT, 1)),
    (Cause.ABORTED, 1, report(ABORTED, "stop", 1)),
    (Cause.DIED, 3, died(3)),
    (Cause.LEFT, 3, report(PEER_LOST, "left after collective 16", 3, gone=[[3, True, 16]])),
    (Cause.UNREACHABLE, 3, report(PEER_LOST, "can be reached no more: reset", 3)),
    (Cause.TIMED_OUT, 3, report(TIMED_OUT, "waiting for rank 3", 3)),
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
    reports = {1: report(ABORTED, "uncaught ValueError: x", 1), 0: died(1), 2: died(1)}
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
    reports = {1: report(PEER_LOST, LIVES, 2), 2: report(PEER_LOST, LIVES, 1), 0: report()}
    verdict = Judge(PLACES).decide(reports, {3: "no answer"})
    assert (verdict.cause, verdict.rank) == (Cause.UNREACHABLE, 1)
    assert verdict.text == (
        f"{NAME} number 17: rank 1 (host h, pid 101) {LIVES}; "
        "look at the output of ranks 1, 2 first"
    )


def test_rank_that_lost_who_lost_it_lives() -> None:
    cut_off = report(*DIED, rank=0, gone=[[0, False, 0], [1, False, 0]])
    reports = {0: died(2), 1: died(2), 2: cut_off, 3: report()}
    verdict = Judge(PLACES).decide(reports, {})
    assert (verdict.cause, verdict.rank) == (Cause.UNREACHABLE, 2)
    assert "rank 2 (host h, pid 102) can be reached no more: " in verdict.text
    assert "died" not in verdict.text
    assert "look at the output of ranks 0, 1, 2 first" in verdict.text


def test_rank_that_answered_and_died_since_is_dead() -> None:
    both = report(*DIED, rank=1, gone=[[1, False, 0], [2, False, 0]])
    verdict = Judge(PLACES).decide({0: both, 2: died(1)}, {1: "dead", 3: "no answer"})
    assert (verdict.cause, verdict.rank) == (Cause.DIED, 1)
    assert "ranks 1 (host h, pid 101) and 2 (host h, pid 102) died" in verdict.text


def test_first_call_that_could_not_end_is_named() -> None:
    reports = {0: died(3, sequence=18), 1: died(3, sequence=17), 2: report(sequence=19)}
    assert Judge(PLACES).decide(reports, {3: "dead"}).sequence == 17


def test_death_between_calls_names_none() -> None:
    idle = report(*DIED, rank=3, sequence=0, progress={"fingerprint": 0})
    verdict = Judge(PLACES).decide({0: idle}, {3: "dead"})
    assert (verdict.collective, verdict.sequence) == (None, None)
    assert verdict.text.startswith("rank 3 (host h, pid 103) died: ")


def test_clean_leave_says_after_which_collective() -> None:
    left = report(PEER_LOST, "left after collective 41", 3, 42, gone=[[3, True, 41]])
    verdict = Judge(PLACES).decide({0: left}, {3: "left after collective 41"})
    assert (
        "rank 3 (host h, pid 103) left after collective 41 while others still call" in verdict.text
    )


def test_timeout_lists_who_came_who_did_not_and_how_far_the_slowest_got() -> None:
    reports = {
        0: report(TIMED_OUT, "", 1, timeout_s=1.5, progress={"bytes_done": 3000}),
        1: report(sequence=16, progress={"submitted": 16}),
        2: report(TIMED_OUT, "", 1, timeout_s=1.5, progress={"bytes_done": 2000}),
    }
    verdict = Judge(PLACES).decide(reports, {3: "silent for 2.0 s"})
    assert (verdict.rank, verdict.cause) == (3, Cause.TIMED_OUT)
    for part in (
        f"{NAME} number 17: Timed out after 1.5 s: ",
        "rank 3 (host h, pid 103) is stopped, or busy without a break: silent for 2.0 s; ",
        f"rank 1 (host h, pid 101), which is still in {NAME} number 16, has not arrived; ",
        "ranks 0, 2 have arrived; ",
        "the slowest of them, rank 2, is at op 1 of 2, with 2000 of 4000 bytes done, "
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
    reports = {0: report(TIMED_OUT, "", 1), 1: report(**report_of_late)}
    text = Judge(PLACES[:2]).decide(reports, {}).text
    assert f"rank 1 (host h, pid 101), which is {occupation}, has not arrived" in text


def test_timeout_does_not_take_a_cut_line_for_a_stopped_process() -> None:
    path = "eth0 10.0.0.1 -> 10.0.0.2 unanswered for 1.9 s"
    text = f"waiting for rank 1 at op 1 of 2; to rank 1: {path}"
    verdict = Judge(PLACES[:2]).decide({0: report(TIMED_OUT, text, 1)}, {1: "silent for 2.0 s"})
    assert "rank 1 (host h, pid 101) is out of reach: silent for 2.0 s; " in verdict.text
    assert f"rank 0, to rank 1: {path}; " in verdict.text


def test_nothing_proposed_is_no_verdict() -> None:
    with pytest.raises(ValueError):
        Judge(PLACES).decide({0: report(), 1: report()}, {})


@pytest.mark.parametrize("cause", Cause)
def test_cause_travels_with_the_text_and_long_texts_are_cut(cause: Cause) -> None:
    assert unseal(seal(cause, "one\ntwo")) == (cause, "one\ntwo")
    told, text = unseal(seal(cause, "ä" * 5000))
    assert told is cause
    assert len(text.encode()) <= 4000
    assert text.endswith(" ...")


def test_every_kind_has_a_cause() -> None:
    assert {cause_of(one[2]["proposal"][0], one[2]["proposal"][4]) for one in RANKED} == set(Cause)
