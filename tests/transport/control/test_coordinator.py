"""One diagnosis for all, whatever rank dies or is silent: both state machines, simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from simulated_ranks import SimulatedRanks

from hccl_py.transport.control.message import Entry


@pytest.fixture
def ranks() -> Iterator[SimulatedRanks]:
    made = SimulatedRanks(5)
    made.run(1.0)
    yield made
    made.close()


def only(diagnoses: list[Any]) -> dict[str, Any]:
    """Return the diagnosis that all have."""
    assert None not in diagnoses
    assert all(one == diagnoses[0] for one in diagnoses)
    diagnosis: dict[str, Any] = diagnoses[0]
    return diagnosis


def test_failure_of_one_reaches_all_with_everybodys_report(ranks: SimulatedRanks) -> None:
    ranks.fail(3)
    ranks.run(0.01)  # a few messages, and no waiting
    assert only(ranks.diagnoses()) == {"judge": 0, "reports": [0, 1, 2, 3, 4], "absent": {}}


def test_nothing_happens_without_a_failure(ranks: SimulatedRanks) -> None:
    ranks.kill(1)
    ranks.news()
    ranks.run(5.0)
    assert ranks.diagnoses() == [None] * 4


def test_two_deaths_at_once_are_waited_for_by_nobody(ranks: SimulatedRanks) -> None:
    ranks.kill(0, 2)
    ranks.fail(1, 3)
    ranks.run(0.01)
    diagnosis = only(ranks.diagnoses())
    assert diagnosis == {"judge": 1, "reports": [1, 3, 4], "absent": {0: "dead", 2: "dead"}}


def test_goodbye_is_told_apart_from_death(ranks: SimulatedRanks) -> None:
    ranks.dead.add(4)
    for engine in ranks.engines[:4]:
        engine.gone = [(4, True, 41)]
    ranks.fail(2)
    ranks.run(0.01)
    assert only(ranks.diagnoses())["absent"] == {4: "left after collective 41"}


@pytest.mark.parametrize("heard", [[1], [3], [], [2, 4]])
def test_coordinator_dies_while_it_hands_out_the_diagnosis(
    ranks: SimulatedRanks, heard: list[int]
) -> None:
    ranks.lost = lambda entry: entry.kind == "diagnosis" and entry.receiver not in heard
    ranks.fail(4)
    ranks.run(0.25)
    first = ranks.engines[0].adopted
    assert first is not None
    assert [ranks.engines[rank].adopted for rank in heard] == [first] * len(heard)
    ranks.lost = lambda entry: False
    ranks.kill(0)
    ranks.news()
    ranks.run(0.6)  # two heartbeats
    diagnosis = only(ranks.diagnoses())
    if heard:  # there shall be no second one
        assert diagnosis == first
    else:
        assert diagnosis["judge"] == 1


def test_coordinator_dies_before_it_has_all_reports(ranks: SimulatedRanks) -> None:
    ranks.lost = lambda entry: entry.kind == "reported"
    ranks.fail(2)
    ranks.run(0.01)
    assert ranks.diagnoses() == [None] * 5
    ranks.lost = lambda entry: False
    ranks.kill(0)
    ranks.news()
    ranks.run(0.02)
    diagnosis = only(ranks.diagnoses())
    assert diagnosis == {"judge": 1, "reports": [1, 2, 3, 4], "absent": {0: "dead"}}


def test_stopped_coordinator_is_passed_over_and_hears_the_diagnosis_later(
    ranks: SimulatedRanks,
) -> None:
    ranks.stopped.add(0)
    ranks.fail(3)
    ranks.run(0.8)  # not long enough to count as silent: the report goes unanswered
    diagnosis = only(ranks.diagnoses())
    assert diagnosis["judge"] == 1
    assert diagnosis["reports"] == [1, 2, 3, 4]
    ranks.stopped.clear()
    ranks.run(1.0)
    assert only(ranks.diagnoses()) == diagnosis


def test_long_stopped_coordinator_costs_no_time(ranks: SimulatedRanks) -> None:
    ranks.stopped |= {0, 1}
    ranks.run(3.0)
    ranks.fail(3)
    ranks.run(0.01)
    diagnosis = only(ranks.diagnoses())
    assert diagnosis["judge"] == 2
    assert set(diagnosis["absent"]) == {0, 1}
    assert all(why.startswith("silent for ") for why in diagnosis["absent"].values())


def test_woken_coordinator_is_in_office_again(ranks: SimulatedRanks) -> None:
    ranks.stopped.add(0)
    ranks.run(3.0)
    assert ranks.participants[3].client.coordinator == 1
    ranks.stopped.clear()
    ranks.run(1.0)
    assert [one.client.coordinator for one in ranks.participants] == [0] * 5
    ranks.fail(4)
    ranks.run(0.01)
    assert only(ranks.diagnoses())["judge"] == 0


def test_rank_that_was_stopped_itself_blames_nobody(ranks: SimulatedRanks) -> None:
    ranks.stopped.add(4)
    ranks.run(30.0)
    ranks.stopped.clear()
    ranks.run(0.01)
    assert ranks.participants[4].client.coordinator == 0


def test_silent_rank_is_waited_for_no_longer_than_the_window(ranks: SimulatedRanks) -> None:
    ranks.stopped.add(4)
    ranks.engines[2].window_s = 0.05
    ranks.fail(2)
    ranks.run(0.04)
    assert ranks.diagnoses() == [None] * 4
    ranks.run(0.02)
    assert only(ranks.diagnoses())["absent"] == {4: "no answer"}


def test_latecomer_gets_the_diagnosis_with_its_next_heartbeat(ranks: SimulatedRanks) -> None:
    ranks.lost = lambda entry: entry.receiver == 4
    ranks.fail(2)
    ranks.run(0.5)
    diagnosis = ranks.engines[0].adopted
    assert diagnosis is not None
    assert ranks.engines[4].adopted is None
    ranks.lost = lambda entry: False
    ranks.run(0.5)
    assert only(ranks.diagnoses()) == diagnosis


def test_split_opinions_on_who_coordinates_end_in_one_diagnosis(ranks: SimulatedRanks) -> None:
    def cut(entry: Entry) -> bool:
        ends = {entry.sender, entry.receiver}
        return 0 in ends and bool(ends & {3, 4})

    ranks.lost = cut
    ranks.run(3.0)
    assert [one.client.coordinator for one in ranks.participants] == [
        0,
        0,
        0,
        1,
        1,
    ]
    ranks.fail(2, 4)  # reported to two coordinators at the same moment
    ranks.run(0.5)
    assert only(ranks.diagnoses())["judge"] == 0


def test_diagnosis_that_came_over_another_way_is_handed_on(ranks: SimulatedRanks) -> None:
    ranks.lost = lambda entry: entry.kind == "reported"  # so that nothing is decided meanwhile
    ranks.fail(2)
    ranks.run(0.01)
    flooded = {"judge": 7}
    ranks.engines[3].adopted = dict(flooded)
    ranks.participants[3].client.on_news(ranks.now_s)
    ranks.lost = lambda entry: False
    ranks.kill(0)
    ranks.news()
    ranks.run(0.02)
    assert only(ranks.diagnoses()) == flooded


def test_judge_that_fails_leaves_the_decision_to_the_engines(ranks: SimulatedRanks) -> None:
    def judge(reports: Any, absent: Any) -> Any:
        raise ValueError("no idea")

    made = SimulatedRanks(3)
    made.participants[0].coordinator._diagnose = judge
    made.fail(1)
    made.run(0.1)
    assert made.diagnoses() == [None] * 3
    made.close()


# ------------------------------------------------------------------------------ agreement


def results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(0) for future in futures]


def test_agreement_of_all(ranks: SimulatedRanks) -> None:
    futures = [ranks.agree(rank, "k", 10 * rank) for rank in range(5)]
    ranks.run(0.01)
    assert results(futures) == [{rank: 10 * rank for rank in range(5)}] * 5


def test_agreement_waits_for_the_living_alone(ranks: SimulatedRanks) -> None:
    futures = [ranks.agree(rank, "k", rank) for rank in (0, 2, 3)]
    ranks.run(1.0)
    assert not any(future.done() for future in futures)
    ranks.kill(1, 4)
    ranks.news()
    ranks.run(0.01)
    assert results(futures) == [{0: 0, 2: 2, 3: 3}] * 3


def test_agreement_goes_without_the_late_and_tells_them(ranks: SimulatedRanks) -> None:
    futures = [ranks.agree(rank, "k", rank, timeout_s=1.0) for rank in range(4)]
    ranks.run(1.1)
    assert results(futures) == [{0: 0, 1: 1, 2: 2, 3: 3}] * 4
    late = ranks.agree(4, "k", 4)
    ranks.run(0.01)
    assert late.result(0) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_agreement_does_not_wait_for_whom_anybody_leaves_out(ranks: SimulatedRanks) -> None:
    futures = [ranks.agree(rank, "k", rank, among=(0, 2, 3, 4)) for rank in (0, 2, 3, 4)]
    ranks.run(0.2)
    assert results(futures) == [{0: 0, 2: 2, 3: 3, 4: 4}] * 4
    early = ranks.agree(1, "other", 1)  # comes in time: its value counts
    futures = [ranks.agree(rank, "other", rank, among=(0, 2, 3, 4)) for rank in (0, 2, 3, 4)]
    ranks.run(0.2)
    assert results([early, *futures]) == [{rank: rank for rank in range(5)}] * 5


@pytest.mark.parametrize("heard", [[], [1], [3]])
def test_agreement_outlives_its_coordinator(ranks: SimulatedRanks, heard: list[int]) -> None:
    ranks.lost = lambda entry: entry.kind == "agreed" and entry.receiver not in heard
    futures = [ranks.agree(rank, "k", rank) for rank in range(5)]
    ranks.run(0.01)
    ranks.lost = lambda entry: False
    ranks.kill(0)
    ranks.news()
    ranks.run(0.05)
    expected = {rank: rank for rank in range(0 if heard else 1, 5)}
    assert results(futures[1:]) == [expected] * 4


def test_store_is_set_again_at_the_next_coordinator(ranks: SimulatedRanks) -> None:
    was_set: Future[Any] = Future()
    ranks.participants[3].client.ask("set", ["key", b"value"], was_set)
    ranks.run(0.01)
    assert was_set.result(0) is True
    got: Future[Any] = Future()
    ranks.participants[4].client.ask("get", [["key", "other"]], got)
    ranks.run(0.01)
    assert not got.done()
    ranks.kill(0)
    ranks.news()
    again: Future[Any] = Future()
    ranks.participants[2].client.ask("set", ["other", b"more"], again)
    ranks.run(0.01)
    assert got.result(0) == [b"value", b"more"]


def test_what_a_coordinator_is_asked_before_it_is_connected_is_asked_again() -> None:
    ranks = SimulatedRanks(5)
    ranks.lost = lambda entry: entry.receiver == 0
    was_set: Future[Any] = Future()
    ranks.participants[3].client.ask("set", ["key", b"value"], was_set)
    got: Future[Any] = Future()
    ranks.participants[4].client.ask("get", [["key"]], got)
    agreed = [ranks.agree(rank, "k", rank) for rank in range(1, 5)]
    ranks.run(0.01)
    assert not was_set.done()
    ranks.lost = lambda entry: False
    agreed.insert(0, ranks.agree(0, "k", 0))
    ranks.run(0.5)
    ranks.close()
    assert was_set.result(0) is True
    assert got.result(0) == [b"value"]
    assert results(agreed) == [{rank: rank for rank in range(5)}] * 5
