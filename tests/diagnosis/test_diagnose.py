"""Which of several causes is the first one, and what the diagnosis says of it."""

from itertools import combinations
from typing import Any

import pytest

from hccl_py.diagnosis.diagnosis import diagnose
from hccl_py.diagnosis.ended import died_since
from hccl_py.diagnosis.record import (
    Diagnosis,
    Failure,
    LoggedCall,
    OtherCall,
    PathTrouble,
    Progress,
    Report,
    Stage,
    decode,
    encode,
)
from hccl_py.diagnosis.reports import Reports
from hccl_py.fingerprint import pack
from hccl_py.memory.element_types import ELEMENT_TYPES
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import DEAD, NO_ANSWER, Absence, Fate
from hccl_py.transport.types import DType, ReduceOp

PROCESSES = [("h", 100 + rank) for rank in range(6)]
CALL = pack("all_reduce", None, ELEMENT_TYPES[DType.FLOAT32], int(ReduceOp.SUM), 1000)
OTHER = pack("broadcast", 0, ELEMENT_TYPES[DType.FLOAT32], int(ReduceOp.SUM), 1000)


NAME = "all_reduce(sum, float32[1000])"
AT = Stage("recv", 1, 2)
SILENT = Absence(Fate.UNKNOWN, "silent for 4.0 s", 4.0)
JUST_SILENT = Absence(Fate.UNKNOWN, "silent for 1.0 s", 1.0)


def decide(
    reports: dict[int, Report],
    absent: dict[int, Absence] | None = None,
    world_size: int = 4,
    nodes: tuple[tuple[int, ...], ...] = (),
) -> Diagnosis:
    diagnosis = diagnose(Reports(reports, absent or {}, PROCESSES[:world_size], nodes))
    assert diagnosis is not None
    return diagnosis


def report(
    cause: Cause | None = None,
    rank: int = -1,
    sequence: int = 17,
    ended: tuple[Failure, ...] = (),
    other_calls: tuple[OtherCall, ...] = (),
    stopped: tuple[int, ...] = (),
    progress: dict[str, Any] | None = None,
    **details: Any,
) -> Report:
    """Return what a rank in the middle of a call reports; without a cause it was only asked."""
    made = {
        "submitted": sequence,
        "sequence": sequence,
        "fingerprint": CALL | sequence,
        "timeout_s": 1.5,
        "bytes_done": 10,
        "bytes_total": 4000,
        "stage": AT,
        "waiting_for": (rank,) if rank >= 0 else (),
        **(progress or {}),
    }
    failure = None
    if cause is not None:
        failure = Failure(cause, rank, CALL | sequence, sequence, **details)
    return Report(failure, Progress(**made), ended, other_calls=other_calls, stopped=stopped)


def died(rank: int, *ended: Failure, **details: Any) -> Report:
    return report(Cause.DIED, rank, ended=ended or (Failure(Cause.DIED, rank),), **details)


def left(rank: int, last_sequence: int, **details: Any) -> Report:
    ended = (Failure(Cause.LEFT, rank, last_sequence=last_sequence),)
    return report(Cause.LEFT, rank, last_sequence=last_sequence, ended=ended, **details)


RANKED = [
    (Cause.MISMATCH, 2, report(Cause.MISMATCH, 2, their_call=OTHER | 17)),
    (Cause.UNCAUGHT_EXCEPTION, 1, report(Cause.UNCAUGHT_EXCEPTION, 1, reason="ValueError: x")),
    (Cause.INTERNAL_ERROR, 1, report(Cause.INTERNAL_ERROR, 1, reason="no memory")),
    (Cause.INTERRUPTED, 1, report(Cause.INTERRUPTED, 1)),
    (Cause.ABORTED, 1, report(Cause.ABORTED, 1, reason="stop")),
    (Cause.CLOSED, 1, report(Cause.CLOSED, 1)),
    (Cause.DIED, 3, died(3)),
    (Cause.LEFT, 3, left(3, 16)),
    (Cause.LOST, 3, report(Cause.LOST, 3, ended=(Failure(Cause.LOST, 3),))),
    (Cause.UNREACHABLE, 3, report(Cause.UNREACHABLE, 3, error="reset")),
    (Cause.TIMED_OUT, 3, report(Cause.TIMED_OUT, 3, waiting_for=(3,), stage=AT)),
]
"""From the cause that outweighs all others to the weakest."""


@pytest.mark.parametrize(("stronger", "weaker"), combinations(range(len(RANKED)), 2))
def test_stronger_cause_wins_whoever_reports_it(stronger: int, weaker: int) -> None:
    cause, rank, first = RANKED[stronger]
    reports = {1: first, 0: RANKED[weaker][2]}
    diagnosis = decide(reports, {2: NO_ANSWER, 3: NO_ANSWER})
    assert (diagnosis.cause, diagnosis.rank) == (cause, rank)
    assert (diagnosis.host, diagnosis.pid) == PROCESSES[rank]
    assert (diagnosis.fingerprint, diagnosis.sequence) == (CALL, 17)
    assert diagnosis.text.startswith(f"{NAME} number 17: ")


def test_rank_that_said_why_it_goes_is_quoted_by_the_diagnosis_on_its_death() -> None:
    reports = {
        1: report(Cause.UNCAUGHT_EXCEPTION, 1, reason="ValueError: x"),
        0: died(1),
        2: died(1),
    }
    diagnosis = decide(reports, {3: DEAD})
    assert (
        diagnosis.text
        == f"{NAME} number 17: rank 1 (host h, pid 101) failed: uncaught ValueError: x"
    )


LIVES = "can no longer be reached: a connection closed, though its process is alive"


def test_connection_that_closed_between_two_who_live_is_no_death() -> None:
    reports = {one: report(Cause.UNREACHABLE, 3 - one, process_lives=True) for one in (1, 2)}
    reports[0] = report()
    diagnosis = decide(reports, {3: NO_ANSWER})
    assert (diagnosis.cause, diagnosis.rank) == (Cause.UNREACHABLE, 1)
    assert diagnosis.text == (
        f"{NAME} number 17: rank 1 (host h, pid 101) {LIVES}; "
        "look at the output of ranks 1, 2 first"
    )


def test_network_that_fell_silent_is_what_to_look_at() -> None:
    reports = {one: report(Cause.UNREACHABLE, 3 - one) for one in (1, 2)}
    text = decide({0: report(), **reports}).text
    assert "rank 1 (host h, pid 101) can no longer be reached: no reconnect succeeded (" in text
    assert "does a firewall, a route or a cable stop packets, perhaps in one direction" in text


def test_of_two_who_lost_each_other_the_one_that_lost_more_is_named() -> None:
    lost = {
        one: tuple(Failure(Cause.LOST, peer) for peer in peers)
        for one, peers in {0: [1], 1: [0, 2]}.items()
    }
    reports = {one: report(Cause.LOST, 1 - one, ended=lost[one]) for one in (0, 1)}
    assert decide({**reports, 2: report()}).rank == 1  # which has not noticed yet


def test_timeout_lists_who_came_who_did_not_and_how_far_the_slowest_got() -> None:
    reports = {
        0: report(Cause.TIMED_OUT, 1, progress={"bytes_done": 3000}),
        1: report(sequence=16, progress={"submitted": 16}),
        2: report(Cause.TIMED_OUT, 1, progress={"bytes_done": 2000}),
    }
    diagnosis = decide(reports, {3: SILENT})
    assert (diagnosis.rank, diagnosis.cause) == (3, Cause.TIMED_OUT)
    for part in (
        f"{NAME} number 17: Timed out after 1.5 s: ",
        "rank 3 (host h, pid 103) is stopped, or busy without releasing the GIL: silent for 4.0 s",
        f"rank 1 (host h, pid 101), which is still in {NAME} number 16, has not arrived; ",
        "ranks 0, 2 have arrived; ",
        "rank 2 is in step 1 of 2 (receiving), 2000 of 4000 bytes moved, waiting for rank 1; ",
    ):
        assert part in diagnosis.text


def test_timeout_calls_a_rank_stopped_if_a_rank_of_its_node_sees_that() -> None:
    reports = {0: report(Cause.TIMED_OUT, 3, waiting_for=(3,)), 2: report(stopped=(3,))}
    diagnosis = decide(reports, {1: SILENT, 3: SILENT})
    assert diagnosis.rank == 3
    assert "pid 103) is stopped (kill -CONT 103 there continues it): silent" in diagnosis.text
    assert "rank 1 (host h, pid 101) is stopped, or busy" in diagnosis.text


def test_timeout_in_a_call_that_all_have_come_to_names_the_network() -> None:
    reports = {rank: report(Cause.TIMED_OUT, 1 - rank) for rank in (0, 1)}
    assert "network" in decide(reports, {}, 2).text


OPEN = "out of reach, stopped, or busy"


@pytest.mark.parametrize(
    ("seen", "absent", "state"),
    [
        ({"out_of_reach": (3,)}, {2: SILENT, 3: SILENT}, "out of reach"),
        ({"out_of_reach": (3,)}, {2: NO_ANSWER, 3: JUST_SILENT}, "out of reach"),
        ({"out_of_reach": (1,)}, {2: SILENT, 3: SILENT}, "stopped, or busy"),
        ({"unlinked": (2,)}, {2: SILENT, 3: SILENT}, OPEN),
        ({}, {2: SILENT, 3: JUST_SILENT}, OPEN),
        ({}, {2: SILENT, 3: NO_ANSWER}, OPEN),
        ({}, {2: SILENT, 3: DEAD}, "stopped, or busy"),
    ],
)
def test_timeout_gives_one_cause_for_all_ranks_of_a_silent_host(
    seen: dict[str, tuple[int, ...]], absent: dict[int, Absence], state: str
) -> None:
    """Who finds out that a host does not answer need not be who waits for it."""
    reports = {0: report(Cause.TIMED_OUT, 2, waiting_for=(2,)), 1: report(progress=seen)}
    text = decide(reports, absent, 4, ((0, 1), (2, 3))).text
    for rank, absence in absent.items():
        if absence is not DEAD:
            assert f"rank {rank} (host h, pid {100 + rank}) is {state}" in text


def test_timeout_of_a_host_that_answers_leaves_its_other_ranks_their_own_cause() -> None:
    reports = {0: report(Cause.TIMED_OUT, 2, progress={"out_of_reach": (2,)}), 4: report()}
    text = decide(reports, {2: SILENT, 3: JUST_SILENT}, 5, ((0,), (2, 3, 4))).text
    assert "rank 2 (host h, pid 102) is out of reach: " in text
    assert "rank 3 (host h, pid 103) is stopped, or busy" in text


def test_timeout_blames_a_silent_rank_before_one_that_only_did_not_answer_in_time() -> None:
    reports = {0: report(Cause.TIMED_OUT, 2, progress={"out_of_reach": (2,)})}
    absent = {1: NO_ANSWER, 2: SILENT, 3: SILENT}
    assert decide(reports, absent, 4, ((0, 1), (2, 3))).rank == 2


def test_timeout_blames_a_rank_in_no_call_before_one_in_an_earlier_call() -> None:
    reports = {
        0: report(sequence=16, progress={"submitted": 16}),
        1: report(progress={"sequence": 0, "submitted": 15}),
        2: report(Cause.TIMED_OUT, 0),
    }
    assert decide(reports, {}, 3).rank == 1  # which rank 0 waits for


@pytest.mark.parametrize(
    ("report_of_late", "occupation"),
    [
        ({"progress": {"sequence": 0, "submitted": 16}}, "in no collective"),
        ({"progress": {"sequence": 0, "submitted": 16, "num_transfers": 2}}, "in a send or recv"),
        (
            {
                "progress": {"sequence": 0, "submitted": 16},
                "other_calls": (OtherCall(b"x", "x", "barrier() number 2", False, ()),),
            },
            "in barrier() number 2 of group x",
        ),
    ],
)
def test_timeout_says_what_the_late_do_instead(
    report_of_late: dict[str, Any], occupation: str
) -> None:
    reports = {0: report(Cause.TIMED_OUT, 1), 1: report(**report_of_late)}
    text = decide(reports, {}, 2).text
    assert f"rank 1 (host h, pid 101), which is {occupation}, has not arrived" in text


def test_nothing_proposed_is_no_diagnosis() -> None:
    assert diagnose(Reports({0: report(), 1: report()}, {}, PROCESSES)) is None


@pytest.mark.parametrize("cause", Cause)
def test_diagnosis_and_record_come_out_as_they_went_in(cause: Cause) -> None:
    path = PathTrouble(1, "eth0", False, 1.9, "reset")
    failure = Failure(cause, 3, CALL, 17, stage=AT, paths=(path,), waiting_for=(1,), signal=9)
    sent = Report(
        failure,
        ended=(Failure(Cause.DIED, 3, signal=9),),
        calls=(LoggedCall(1, CALL, 4000, "train.py:41"),),
        other_calls=(OtherCall(b"x", "x", "barrier() number 2", True, (("h", 100),)),),
    )
    assert decode(Report, encode(sent)) == sent
    diagnosis = decide({0: sent})
    assert decode(Diagnosis, encode(diagnosis)) == diagnosis


@pytest.mark.parametrize(
    "packed", [b"\x80", encode(Report())[:-1], encode(Diagnosis(Cause.DIED, ""))]
)
def test_what_is_no_report_is_rejected(packed: bytes) -> None:
    with pytest.raises((TypeError, ValueError)):
        decode(Report, packed)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ({"signal": 9}, "killed by signal 9 (SIGKILL)"),
        ({"exit_code": 3}, "its process ended with exit code 3"),
        ({}, "its connections closed without a goodbye"),
    ],
)
def test_death_says_how_the_process_ended(end: dict[str, int], how: str) -> None:
    text = decide({0: died(3, **end)}, {3: DEAD}).text
    assert f"rank 3 (host h, pid 103) died: {how}; " in text


def test_rank_of_another_node_is_lost_until_its_node_confirms() -> None:
    lost = report(Cause.LOST, 3, ended=(Failure(Cause.LOST, 3),))
    diagnosis = decide({0: lost, 1: lost}, {3: NO_ANSWER})
    assert (diagnosis.cause, diagnosis.rank, diagnosis.dead) == (Cause.LOST, 3, (3,))
    beside = report(ended=(Failure(Cause.DIED, 3),))
    confirmed = decide({0: lost, 2: beside}, {3: DEAD})
    assert (confirmed.cause, confirmed.dead) == (Cause.DIED, (3,))
    assert decide({0: lost, 1: lost}, {3: DEAD}).cause is Cause.DIED  # a heartbeat told


def test_ranks_that_lost_each_other_are_not_dead() -> None:
    reports = {
        one: report(Cause.LOST, 1 - one, ended=(Failure(Cause.LOST, 1 - one),)) for one in (0, 1)
    }
    diagnosis = decide(reports, {})
    assert (diagnosis.cause, diagnosis.dead) == (Cause.UNREACHABLE, ())


def test_rank_that_is_lost_after_the_reports_is_dead_unless_it_reports_a_loss_too() -> None:
    reports = {0: report(), 1: report(ended=(Failure(Cause.LOST, 0),)), 2: report()}
    seen = [Failure(Cause.LOST, rank) for rank in (1, 2, 3)]
    collected = Reports(reports, {3: NO_ANSWER}, PROCESSES)
    assert died_since(collected, 0, seen) == {2, 3}
