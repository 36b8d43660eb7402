"""The coordinator and the ranks under every schedule of a few steps, and under random long ones."""

import pytest
from every_schedule import Faults, World, run_random, schedules


def made(world_size: int, failing: tuple[int, ...], faults: Faults) -> World:
    world = World(world_size, faults)
    world.fail(*failing)
    world.run(0.0)
    return world


ONE_FAULT = [Faults(), Faults(deaths=1), Faults(losses=1), Faults(delays=1)]
# More kinds at once can leave two diagnoses: docs/internals/protocols.md.
SEVERAL_FAULTS = [Faults(deaths=3), Faults(losses=3), Faults(1, 1), Faults(delays=1)]
FAILING = [(0,), (2,), (1, 2)]


def explore(failing: tuple[int, ...], faults: Faults, depth: int, limit: int) -> None:
    found = list(schedules(lambda: made(3, failing, faults), depth, limit))
    print(f"{len(found)} schedules")
    assert len(found) > 1


@pytest.mark.parametrize("failing", FAILING, ids=str)
@pytest.mark.parametrize("faults", ONE_FAULT, ids=str)
def test_every_schedule_ends_with_one_diagnosis_in_time(
    failing: tuple[int, ...], faults: Faults
) -> None:
    explore(failing, faults, depth=5, limit=300)


@pytest.mark.nightly("attacks")
@pytest.mark.parametrize("failing", FAILING, ids=str)
@pytest.mark.parametrize("faults", ONE_FAULT, ids=str)
def test_every_longer_schedule_ends_with_one_diagnosis_in_time(
    failing: tuple[int, ...], faults: Faults
) -> None:
    explore(failing, faults, depth=9, limit=20_000)


@pytest.mark.parametrize("faults", SEVERAL_FAULTS, ids=str)
def test_random_schedule_ends_with_one_diagnosis_in_time(faults: Faults) -> None:
    for seed in range(60):
        assert run_random(lambda seed=seed: made(5, (seed % 5, 4), faults), seed, 80)


@pytest.mark.nightly("attacks")
@pytest.mark.parametrize("faults", SEVERAL_FAULTS, ids=str)
def test_many_random_schedules_end_with_one_diagnosis_in_time(faults: Faults) -> None:
    for seed in range(60, 2_000):
        assert run_random(lambda seed=seed: made(5, (seed % 5, 4), faults), seed, 80)


def test_rank_that_was_only_asked_says_who_collects() -> None:
    """A report that is late at the lowest rank opens two collections, at ranks 0 and 1."""
    world = made(3, (2,), Faults(delays=1))
    world.act(("wait", -1))  # rank 2 asks rank 1 too
    for sender, receiver in [(2, 0), (2, 0), (0, 1), (2, 1), (2, 1)]:
        world.act(("deliver", receiver, sender))
    world.finish()
    assert world.diagnoses()[0]["judge"] == 0
    world.close()
