"""One diagnosis for all, whatever rank dies or is silent: both state machines, simulated time."""

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest
from simulated_ranks import SimulatedRanks

from hccl_py.transport.control.coordinator import WINDOW_S
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
    ranks.run(0.11)  # rank 1 is not the first coordinator: it listens for what that one sent
    diagnosis = only(ranks.diagnoses())
    assert diagnosis == {"judge": 1, "reports": [1, 3, 4], "absent": {0: "dead", 2: "dead"}}


def test_goodbye_is_logged_apart_from_death(ranks: SimulatedRanks) -> None:
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


def test_end_of_the_coordinator_is_seen_before_its_diagnosis() -> None:
    made = SimulatedRanks(2)
    made.lost = lambda entry: entry.kind == "diagnosis"
    made.fail(0, 1)
    made.run(0.6)
    concluded = made.engines[0].diagnosis()
    assert concluded is not None
    made.kill(0)
    made.news()
    made.run(0.05)
    assert made.engines[1].adopted is None
    made.participants[1].receive(0, "diagnosis", concluded, made.now_s)
    assert made.engines[1].diagnosis() == concluded
    made.run(1.0)
    made.close()


def test_coordinator_dies_before_it_has_all_reports(ranks: SimulatedRanks) -> None:
    ranks.lost = lambda entry: entry.kind == "reported"
    ranks.fail(2)
    ranks.run(0.01)
    assert ranks.diagnoses() == [None] * 5
    ranks.lost = lambda entry: False
    ranks.kill(0)
    ranks.news()
    ranks.run(0.12)
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


def test_coordinator_that_never_answered_is_silent_since_the_start() -> None:
    made = SimulatedRanks(3)
    made.stopped.add(0)
    made.run(5.0)
    made.fail(2)
    made.run(5.0)
    silent_for_s = float(only(made.diagnoses())["absent"][0].split()[2])
    assert 1.0 < silent_for_s <= 10.0
    made.close()


@pytest.mark.parametrize("fails_before_it_beats", [True, False])
def test_coordinator_that_was_stopped_blames_nobody_for_its_own_silence(
    ranks: SimulatedRanks, fails_before_it_beats: bool
) -> None:
    ranks.run(0.1)  # no heartbeat is on its way
    ranks.stopped.add(0)
    ranks.lost = lambda entry: entry.receiver == 0 and entry.kind not in ("reported", "adopted")
    ranks.fail(1)
    ranks.run(1.2)
    ranks.stopped.clear()
    if not fails_before_it_beats:
        ranks.run(0.01)
    ranks.fail(0)
    ranks.run(0.01)
    assert only(ranks.diagnoses())["judge"] == 1


def test_judge_that_fails_leaves_the_decision_to_the_engines(ranks: SimulatedRanks) -> None:
    def judge(reports: Any, absent: Any) -> Any:
        raise ValueError("no idea")

    made = SimulatedRanks(3)
    made.engines[0].diagnose = judge  # type: ignore[method-assign]
    made.fail(1)
    made.run(0.1)
    assert made.diagnoses() == [None] * 3
    made.close()


def test_rank_that_its_neighbour_saw_die_is_not_waited_for(ranks: SimulatedRanks) -> None:
    ranks.stopped.add(4)
    ranks.fail(2)
    ranks.run(WINDOW_S / 5)
    assert ranks.diagnoses() == [None] * 4
    ranks.engines[3].gone = [(4, False, 0)]
    ranks.news()
    ranks.run(0.01)
    assert only(ranks.diagnoses())["absent"] == {4: "dead"}


def test_news_go_to_who_collects_reports_too(ranks: SimulatedRanks) -> None:
    """Rank 0 is dead; of rank 3's node nobody knows, and it follows rank 0 still."""
    ranks.stopped.add(4)
    ranks.dead.add(0)
    ranks.engines[1].gone = [(0, False, 0)]
    ranks.fail(1)
    ranks.run(0.01)
    sent: list[tuple[int, int, str]] = []
    ranks.lost = lambda entry: bool(sent.append((entry.sender, entry.receiver, entry.kind)))
    ranks.engines[3].gone = [(4, False, 0)]
    ranks.news()
    assert {(3, 0, "reported"), (3, 1, "reported")} <= set(sent)


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


def test_question_that_was_lost_is_repeated(ranks: SimulatedRanks) -> None:
    ranks.lost = lambda entry: entry.kind == "agree" and entry.sender == 3
    futures = [ranks.agree(rank, "k", rank) for rank in range(5)]
    ranks.run(0.01)
    ranks.lost = lambda entry: False
    ranks.run(0.3)  # a heartbeat
    assert results(futures) == [{rank: rank for rank in range(5)}] * 5


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


@pytest.mark.parametrize("late_s", [0.0, 0.02, 0.13, 0.24])
def test_ranks_beat_at_one_time_and_never_twice_in_half_a_period(
    ranks: SimulatedRanks, late_s: float
) -> None:
    beats_s: dict[int, list[float]] = {rank: [] for rank in range(5)}

    def note(entry: Entry) -> bool:
        if entry.kind == "beat" and entry.receiver == 0:
            beats_s[entry.sender].append(ranks.now_s)
        return False

    ranks.lost = note
    for rank in range(1, 5):  # one after the other they are late once
        ranks.run(0.7)
        ranks.stopped = {rank}
        ranks.run(0.25 + late_s)
        ranks.stopped = set()
    ranks.run(2.0)
    for times_s in beats_s.values():
        assert min(after - before for before, after in pairwise(times_s)) >= 0.124
        assert [time_s % 0.25 for time_s in times_s[-4:]] == [0.0] * 4
