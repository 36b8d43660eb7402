"""The state of a job: who is waited for, when all ranks start, stop, restart and end."""

import math
import signal
from typing import Any

import pytest

from hccl_py.launcher.exit_codes import CHECK_FAILED, LOST_NODE, MISSING_NODE
from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.coordinator.coordinator import JobCoordinator, Phase
from hccl_py.launcher.job.layout import Hello, JobSettings, Slot

SETTINGS = JobSettings(
    hosts=("a", "b", ""),
    address="a:29501",
    connect_timeout_s=300.0,
    stop_s=30.0,
    job_id="job",
)
FAILURE = RankFailure(
    rank=3,
    node=1,
    local_rank=1,
    host="b",
    pid=10,
    exit_code=7,
    kind="",
    message="",
    traceback="",
    at_s=100.0,
    log="",
)


class Job:
    """A coordinator, and what it sent and said."""

    def __init__(self, **changed: Any) -> None:
        self.sent: list[tuple[int, str, Any]] = []
        self.said: list[str] = []
        self.coordinator = JobCoordinator(
            SETTINGS._replace(**changed),
            0.0,
            lambda *message: self.sent.append(message),
            self.said.append,
        )

    def join(self, index: int, ranks: int = 2, now_s: float = 1.0, host: str = "x") -> str:
        """Have an agent come, with the others of one host, which needs no preflight."""
        slots = tuple(Slot(index, rank) for rank in range(ranks))
        hello = Hello(host, 100 + index, slots, f"10.0.0.{index}", 1000 + index)
        problem = self.coordinator.why_not(index)
        self.coordinator.join(index, hello, now_s)
        return problem

    def kinds(self) -> list[tuple[int, str]]:
        """Return what was sent since the last call."""
        sent, self.sent[:] = [(index, kind) for index, kind, _ in self.sent], []
        return sent

    def ended(self, index: int, now_s: float, *failures: RankFailure, attempt: int = 0) -> None:
        self.coordinator.receive(index, "ended", [attempt, failures, 2000 + index + attempt], now_s)


def started(**changed: Any) -> Job:
    """Return a job whose nodes have 2, 3 and 1 ranks, which run."""
    job = Job(**changed)
    assert [job.join(index, ranks) for index, ranks in ((1, 3), (2, 1), (0, 2))] == ["", "", ""]
    return job


def test_all_ranks_start_when_the_last_node_has_come() -> None:
    job = Job()
    assert job.join(2, 1) == job.join(0, 2) == ""
    assert job.sent == []
    assert job.join(1, 3) == ""
    attempts = {index: body for index, kind, body in job.sent if kind == "start"}
    assert {index: attempt.first_rank for index, attempt in attempts.items()} == {0: 0, 1: 2, 2: 5}
    assert {attempt.world_size for attempt in attempts.values()} == {6}
    assert {attempt.node_sizes for attempt in attempts.values()} == {(2, 3, 1)}
    assert {(each.master_addr, each.master_port) for each in attempts.values()} == {
        ("10.0.0.0", 1000)
    }


def test_line_after_five_seconds_names_who_is_missing_and_the_end_too() -> None:
    job = Job()
    job.join(1)
    assert job.coordinator.next_s() == 5.0
    job.coordinator.tick(5.0)
    assert job.said == [
        "hccl-launch: waiting for node 0 (a), node 2, which should reach a:29501, for 295 s more; "
        "here: node 1 (x)"
    ]
    job.coordinator.tick(299.0)
    assert job.coordinator.exit_code is None
    job.coordinator.tick(300.0)
    assert job.coordinator.exit_code == MISSING_NODE
    assert job.said[-1].startswith(
        "hccl-launch: error: node 0 (a), node 2 did not connect within 300"
    )
    assert (1, "end") in job.kinds()


def test_node_that_cannot_belong_to_the_job_is_refused_with_the_reason() -> None:
    job = Job()
    assert job.join(1) == ""
    assert "node 1 (x) has joined already, as process 101" in job.join(1)
    assert "this job has 3 nodes; there is no node 7" in job.coordinator.why_not(7)
    job = started()
    job.coordinator.lose(1, "gone", 2.0)
    assert job.join(1) == "node 1 (x) has joined already, as process 101: " + (
        "give each node a number of its own"
    )


def test_node_that_leaves_before_the_start_may_come_again() -> None:
    job = Job()
    job.join(1)
    assert job.coordinator.agents.num_missing == 2
    job.coordinator.lose(1, "its hccl-launch ended", 2.0)
    assert job.coordinator.agents.num_missing == 3, "so many may connect again"
    assert job.said == ["hccl-launch: node 1 (x) left again: its hccl-launch ended"]
    assert job.join(1) == job.join(0) == job.join(2) == ""
    assert job.coordinator.phase is Phase.RUNNING


def test_two_agents_with_one_slot_end_the_job() -> None:
    job = Job(hosts=("a", "b"))
    job.join(0)
    same = Hello("b", 1, (Slot(0, 1),), "", 0)
    job.coordinator.join(1, same, 1.0)
    assert job.coordinator.exit_code == MISSING_NODE
    assert job.said == ["hccl-launch: error: local rank 1 of node 0 was started twice"]


def test_hosts_need_not_know_what_only_the_configuration_of_ssh_says() -> None:
    job = Job(aliases=frozenset({"b"}))
    for index in range(3):
        job.join(index, host=f"host {index}")
    asked = [body[1]["names"] for _, kind, body in job.sent if kind == "ask"]
    assert asked == [("a",)] * 3


def test_hosts_are_checked_before_the_ranks_start_and_a_silent_one_ends_the_job() -> None:
    job = Job()
    assert [job.join(index, host=f"host {index}") for index in range(3)] == ["", "", ""]
    assert job.coordinator.phase is Phase.CHECKING
    assert job.kinds() == [(index, "ask") for index in range(3)]
    job.coordinator.tick(job.coordinator.next_s())
    assert job.coordinator.exit_code == CHECK_FAILED
    assert "nodes 0-2 (a, b, host 2): did not answer the question 'examine'" in job.said[-1]
    assert job.kinds()[-3:] == [(index, "end") for index in range(3)]


def test_host_that_is_lost_while_it_is_checked_ends_the_job() -> None:
    job = Job()
    for index in range(3):
        job.join(index, host=f"host {index}")
    job.coordinator.lose(2, "its hccl-launch ended", 2.0)
    assert job.coordinator.exit_code == LOST_NODE
    assert job.said == ["hccl-launch: error: node 2 (host 2) was lost: its hccl-launch ended"]


def test_first_failure_stops_every_node_a_moment_later() -> None:
    job = started()
    job.kinds()
    job.coordinator.receive(1, "failed", [0, 3, 7], 10.0)
    assert job.kinds() == []
    job.coordinator.tick(job.coordinator.next_s())
    assert sorted(job.kinds()) == [(0, "stop"), (1, "stop"), (2, "stop")]
    for index, failures in ((0, ()), (2, ()), (1, (FAILURE,))):
        job.ended(index, 11.0, *failures)
    assert job.coordinator.exit_code == 7
    assert "rank 3 of 6 exited with code 7 (node 1 on b, local rank 1" in job.said[-1]
    assert {body[0] for _, kind, body in job.sent if kind == "end"} == {7}


def test_rank_that_left_others_alone_with_exit_code_0_is_the_first_failure() -> None:
    job = started()
    left = FAILURE._replace(rank=0, node=0, local_rank=0, host="a", exit_code=0, at_s=-5.0)
    victim = FAILURE._replace(kind="PeerLostError", message="lost", exit_code=1, blames=0)
    fine = FAILURE._replace(rank=5, node=2, exit_code=0)
    job.coordinator.receive(1, "failed", [0, 3, 1], 10.0)
    for index, end in ((0, left), (2, fine), (1, victim)):
        job.ended(index, 11.0, end)
    assert job.coordinator.exit_code == 1
    before, _, title, reason = job.said[-1].splitlines()
    assert title.startswith("hccl-launch: rank 0 of 6 exited with code 0 (node 0 on a")
    assert "likely reason: it ended while others still called it" in reason
    assert "after rank 0 ended: PeerLostError on rank 3" in before


def test_ranks_that_all_end_well_are_no_failure() -> None:
    job = started()
    for index in range(3):
        job.ended(index, 11.0, FAILURE._replace(rank=index, exit_code=0))
    assert job.coordinator.exit_code == 0


def test_all_nodes_restart_together_and_rank_0_gets_a_fresh_port() -> None:
    job = started(max_restarts=1)
    job.kinds()
    job.coordinator.receive(1, "failed", [0, 3, 7], 10.0)
    for index, failures in ((1, (FAILURE,)), (0, ())):
        job.ended(index, 11.0, *failures)
    assert job.kinds() == []  # node 2 still runs
    job.ended(2, 12.0)
    assert {body.master_port for _, kind, body in job.sent if kind == "start"} == {2000}
    assert sorted(job.kinds()) == [(0, "start"), (1, "start"), (2, "start")]
    assert job.said[-1].endswith("hccl-launch: restart 1 of 1: all ranks start again")
    job.ended(1, 13.0, FAILURE)  # late, of the attempt before
    assert job.coordinator.phase is Phase.RUNNING
    for index in range(3):
        job.ended(index, 14.0, *([FAILURE] if index == 1 else []), attempt=1)
    assert job.coordinator.exit_code == 7


def test_lost_node_stops_the_others_and_is_named_last() -> None:
    job = started(max_restarts=3)
    job.kinds()
    job.coordinator.lose(1, "it cannot be reached", 10.0)
    job.coordinator.tick(job.coordinator.next_s())
    assert sorted(job.kinds()) == [(0, "stop"), (2, "stop")]
    job.ended(0, 11.0)
    job.ended(2, 11.0, FAILURE._replace(rank=5, node=2))
    assert job.coordinator.exit_code == LOST_NODE
    assert job.said[-1].splitlines()[-1] == (
        "hccl-launch: error: node 1 (x) with ranks 2-4 was lost: it cannot be reached"
    )


def test_node_whose_ranks_do_not_end_counts_as_lost() -> None:
    job = started()
    job.coordinator.receive(1, "failed", [0, 3, 7], 10.0)
    job.coordinator.tick(11.0)
    job.ended(1, 12.0, FAILURE)
    job.ended(2, 12.0)
    job.coordinator.tick(job.coordinator.next_s())
    assert job.coordinator.exit_code == 7, "they did not end because rank 3 had failed"
    assert "node 0 (x) with ranks 0-1 was lost: its ranks did not end in time" in job.said[-1]


def test_stop_names_the_ranks_that_were_killed_while_they_saved() -> None:
    job = started()
    job.coordinator.stop("stopped by SIGTERM", 143, 10.0)
    for index in range(3):
        killed = FAILURE._replace(rank=index, exit_code=-9, was_stopped=True, was_killed=True)
        job.ended(index, 41.0, *([killed] if index else []))
    assert job.coordinator.exit_code == 143
    assert job.said[-1].startswith("hccl-launch: stopped by SIGTERM; all ranks were ended; ranks 1")


def test_stop_after_a_rank_failed_reports_that_rank() -> None:
    job = started(max_restarts=1)
    job.coordinator.receive(1, "failed", [0, 3, 7], 10.0)
    job.coordinator.stop("stopped by SIGINT", 130, 11.0)
    for index in range(3):
        job.ended(index, 12.0, *([FAILURE] if index == 1 else []))
    assert job.coordinator.exit_code == 7
    assert "rank 3 of 6 exited with code 7" in job.said[-1]
    assert job.said[-1].endswith("hccl-launch: stopped by SIGINT; all ranks were ended")


def test_signal_that_reached_the_ranks_too_blames_none_of_them() -> None:
    job = started()
    job.coordinator.receive(1, "failed", [0, 3, -15], 10.0)
    job.coordinator.stop("stopped by SIGTERM", 143, 10.1)
    for index in range(3):
        job.ended(index, 11.0, *([FAILURE._replace(exit_code=-15)] if index == 1 else []))
    assert job.coordinator.exit_code == 143
    assert job.said == ["hccl-launch: stopped by SIGTERM; all ranks were ended"]


@pytest.mark.parametrize(("blames", "exit_code"), [(None, 7), (0, LOST_NODE)])
def test_node_that_is_lost_after_a_rank_failed_is_the_cause_only_if_that_rank_lost_it(
    blames: int | None, exit_code: int
) -> None:
    job = started()
    job.coordinator.receive(1, "failed", [0, 3, 7], 10.0)
    job.coordinator.tick(11.0)
    job.coordinator.lose(0, "it does not answer", 12.0)
    job.ended(1, 13.0, FAILURE._replace(blames=blames))
    job.ended(2, 13.0)
    assert job.coordinator.exit_code == exit_code
    assert "node 0 (x) with ranks 0-1 was lost: it does not answer" in job.said[-1]


def test_ranks_go_on_while_enough_are_left() -> None:
    job = started(min_ranks=3)
    job.kinds()
    job.coordinator.receive(1, "failed", [0, 3, -signal.SIGKILL], 20.0)
    job.ended(2, 20.1)
    job.coordinator.lose(0, "it does not answer", 20.2)
    assert job.coordinator.phase is Phase.RUNNING
    assert job.kinds() == []
    assert job.said == [
        "hccl-launch: rank 3 was killed by SIGKILL; 5 of 6 ranks continue (--min-ranks 3)",
        "hccl-launch: node 0 (x) with ranks 0-1 was lost: it does not answer; "
        "3 of 6 ranks continue (--min-ranks 3)",
    ]
    job.ended(1, 30.0, FAILURE)
    assert job.coordinator.exit_code == 0
    assert "the other ranks ended well" in job.said[2]
    assert job.said[2].splitlines()[-1].endswith("was lost: it does not answer")


def test_ranks_are_stopped_when_too_few_are_left() -> None:
    job = started(min_ranks=5)
    job.kinds()
    job.coordinator.receive(1, "failed", [0, 3, 7], 20.0)
    assert job.coordinator.next_s() == math.inf
    job.coordinator.receive(1, "failed", [0, 4, 7], 21.0)
    job.coordinator.tick(job.coordinator.next_s())
    assert [kind for _, kind in job.kinds()] == ["stop"] * 3
    job.ended(0, 22.0)
    job.ended(2, 22.0)
    job.ended(1, 22.0, FAILURE)
    assert job.coordinator.exit_code == 7


def test_more_ranks_to_go_on_than_there_are_is_a_usage_error() -> None:
    job = started(min_ranks=7)
    assert job.coordinator.exit_code == 2
    assert job.said == [
        "hccl-launch: error: --min-ranks: expected 0 to 6, the ranks of the job, got 7"
    ]
