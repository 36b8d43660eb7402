"""What is said of a step, from reports that a test makes up."""

from types import SimpleNamespace
from typing import Any

import pytest

from hccl_py.lab.emulation import report
from hccl_py.lab.emulation.cluster import Cluster
from hccl_py.lab.emulation.network import NEVER_NS
from hccl_py.lab.emulation.record import CallKind, Record, TimeSpan
from hccl_py.lab.emulation.report import forecasts, lines
from hccl_py.lab.emulation.steps import covered_ns, steps_of

MS = 1_000_000
SIZE = 1 << 20
CLUSTER = Cluster(2, 1, 12.5e6, 16e3, 50e-6, {}, {}, ())


class Job:
    """Ranks on nodes of their own, which reduce once a step of 100 ms."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.num_bytes = 0
        self.name, self.ranks = "world", list(range(num_ranks))
        self.record = Record(self.traffic)

    def traffic(self) -> list[Any]:
        wire = {"from_node": 0, "to_node": -1, "leaves": True}
        return [SimpleNamespace(**wire, num_bytes=self.num_bytes, bytes_per_s=12.5e6)]

    def step(self, number: int, *begun_ms: int, ended_ms: int) -> None:
        origin = 100 * number
        for rank, begun in zip(self.ranks, begun_ms, strict=False):
            self.call(rank, number, "all_reduce", origin + begun, origin + ended_ms)
        self.num_bytes += SIZE
        for rank in self.ranks:
            self.record.note_step(rank, number, (origin + 99) * MS)
            self.record.note_reported(self.member(rank), (origin + 99) * MS)

    def member(self, rank: int) -> tuple[str, int, int]:
        return self.name, self.ranks.index(rank), len(self.ranks)

    def call(
        self, rank: int, number: int, name: str, begun_ms: int, ended_ms: int, peer: Any = None
    ) -> None:
        call = [number, name, SIZE, peer, begun_ms * MS, ended_ms * MS]
        self.record.note_calls(self.member(rank), rank, [call])


def test_late_rank_is_not_what_the_network_cost() -> None:
    job = Job()
    for number in range(1, 5):
        job.step(number, 10, 40, ended_ms=60)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.step_ms, steps.network_ms) == (3, 100.0, 20.0)
    assert steps.calls == {CallKind("all_reduce", SIZE): 1.0}
    assert steps.calls_ms == 20.0
    assert steps.wire is not None
    assert steps.wire.num_bytes == SIZE
    assert steps.wire.busy_ms == pytest.approx(SIZE / 12.5e3)


def test_steps_that_a_killed_rank_did_not_report_are_not_measured() -> None:
    job = Job()
    for number in range(1, 4):
        job.step(number, 10, 10, ended_ms=60)
    for number in range(4, 9):
        for rank in range(2):
            job.record.note_step(rank, number, (100 * number + 99) * MS)
        job.call(0, number, "all_reduce", 100 * number + 10, 100 * number + 60)
        job.record.note_reported(("world", 0, 2), (100 * number + 99) * MS)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.num_left_out, steps.network_ms) == (2, 5, 50.0)
    assert "  5 more were not: not all ranks reported their calls" in lines(CLUSTER, 1, steps)


def test_job_that_reported_too_few_steps_says_so() -> None:
    job = Job()
    job.step(1, 10, 10, ended_ms=60)
    for number in range(2, 4):
        job.record.note_step(0, number, (100 * number + 99) * MS)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.num_left_out, steps.network_ms) == (0, 2, 50.0)
    assert "too few steps were measured" in "\n".join(lines(CLUSTER, 1, steps))


def test_job_that_started_again_is_measured_from_there() -> None:
    job = Job()
    for number in range(1, 4):
        job.step(number, 10, 10, ended_ms=60)
    for number in range(1, 4):  # of a communicator of the next attempt
        at_ms = 1000 + 100 * number
        for rank in range(2):
            call = [number, "all_reduce", SIZE, None, at_ms * MS, (at_ms + 20) * MS]
            job.record.note_step(rank, number, (at_ms + 99) * MS)
            job.record.note_calls(("again", rank, 2), rank, [call])
            job.record.note_reported(("again", rank, 2), (at_ms + 99) * MS)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.num_left_out, steps.network_ms) == (2, 0, 20.0)


def test_one_step_with_a_fault_is_not_all_steps() -> None:
    job = Job()
    for number in range(1, 7):
        job.step(number, 10, 10, ended_ms=90 if number == 3 else 20)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.network_ms, steps.calls_ms) == (10.0, 10.0)


def test_calls_inside_a_node_and_unfinished_ones_do_not_count() -> None:
    job = Job()
    for rank in range(2):  # of another communicator, on one node
        call = [1, "all_reduce", SIZE, None, MS, 2 * MS]
        job.record.note_calls(("node", rank, 2), 0, [call])
    assert steps_of(job.record) is None
    job.call(0, 1, "all_reduce", 1, 2)  # rank 1 never reported it
    assert steps_of(job.record) is None


def test_transfers_between_nodes_are_counted_and_job_without_steps_is_one_step() -> None:
    job = Job()
    job.call(0, 7, "send", 10, 30, peer=1)
    job.call(1, 8, "recv", 12, 40, peer=0)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.network_ms, steps.num_transfers) == (0, 28.0, 1.0)
    text = "\n".join(lines(CLUSTER, 1, steps))
    assert "all calls count as one step" in text
    assert "not simulated: 1 sends of the job" in text


def test_time_in_several_spans_counts_once_and_in_its_step() -> None:
    spans = [TimeSpan(5, 12), TimeSpan(0, 3), TimeSpan(2, 4), TimeSpan(8, 9), TimeSpan(15, 40)]
    assert covered_ns(spans, [0, 10, 20, 30]) == [4 + 5, 2 + 5, 10]


def test_calls_of_every_fourth_step_take_a_fourth_of_their_time_per_step() -> None:
    job = Job()
    for number in range(1, 14):
        job.step(number, *([20, 20] if number % 4 == 0 else []), ended_ms=60)
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.calls) == (12, {CallKind("all_reduce", SIZE): 0.25})
    assert (steps.network_ms, steps.calls_ms, steps.step_ms) == (10.0, 10.0, 100.0)


def test_steps_after_a_death_are_measured_where_the_others_go_on() -> None:
    job = Job(3)
    for number in range(1, 6):
        job.step(number, 10, 10, 10, ended_ms=60)
    # Rank 0 dies after step 6, and its last report is of step 5.
    for rank in range(3):
        job.record.note_step(rank, 6, 699 * MS)
    job.record.note_end(0, [job.member(0)], 750 * MS)
    for rank in (1, 2):  # they shrink, and close what they had
        job.record.note_reported(job.member(rank), NEVER_NS)
    job.name, job.ranks = "rest", [1, 2]
    for number in range(7, 12):
        job.step(number, 10, 10, ended_ms=30)
    steps = steps_of(job.record)
    assert steps is not None
    # Step 6, and the one in which rank 0 died.
    assert (steps.num_steps, steps.num_left_out) == (8, 2)
    assert steps.calls == {CallKind("all_reduce", SIZE): 1.0}
    assert steps.network_ms == pytest.approx((50 + 20) / 2)


def test_rank_that_closes_its_communicators_has_not_died() -> None:
    job = Job()
    for number in range(1, 5):
        job.step(number, 10, 10, ended_ms=60)
    for rank in range(2):
        job.record.note_reported(("world", rank, 2), NEVER_NS)
    job.record.note_end(0, [job.member(0)], 600 * MS)
    assert job.record.deaths == []
    steps = steps_of(job.record)
    assert steps is not None
    assert (steps.num_steps, steps.num_left_out) == (3, 0)


def test_report_says_what_the_network_cost_and_what_more_nodes_would_take() -> None:
    job = Job()
    for number in range(1, 4):
        job.step(number, 0, 0, ended_ms=90)
    text = list(lines(CLUSTER, 1, steps_of(job.record)))
    assert text[:3] == [
        "emulated network: 2 nodes of 1, 100 Mbit/s, 50 us",
        "  2 steps were measured, of 100 ms (median)",
        "  the network took 90 ms of a step, 90 % of it",
    ]
    assert [line.split()[:2] for line in text[-3:]] == [["2", "2"], ["4", "4"], ["8", "8"]]


def test_forecast_is_bound_by_the_wires_of_the_file() -> None:
    two, four, eight = forecasts(CLUSTER, 1, {CallKind("all_reduce", 4 * SIZE): 2.0})
    for one in (two, four, eight):
        n = one.num_ranks
        assert one.ms is not None
        wire_ms = 2 * (n - 1) / n * 4 * SIZE * 1514 / 1448 / 12.5e3
        assert 2 * wire_ms * 0.99 < one.ms < 2 * wire_ms * 1.1
        assert one.num_left_out == 0


def test_forecast_lets_blocks_keep_their_size() -> None:
    two, four, _ = forecasts(CLUSTER, 1, {CallKind("all_gather", 2 * SIZE): 1.0})
    assert two.ms is not None
    assert four.ms == pytest.approx(3 * two.ms, rel=0.1)  # n - 1 blocks of a MiB come in


def test_forecast_that_had_no_time_says_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_MOST_S", 0.0)
    job = Job()
    for number in range(1, 4):
        job.step(number, 0, 0, ended_ms=90)
    last = list(lines(CLUSTER, 1, steps_of(job.record)))[-1]
    assert last.split() == ["8", "8", "-", "(1", "kinds", "left", "out)"]
