"""What the proof says of deadlocks, in engines whose lanes have the least room."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from agreement import Judged, collective_of, draw, install, run_calls
from placed_calls import PlacedCall
from thread_ranks import ThreadRanks
from tiers import by_night

from hccl_py import Communicator
from hccl_py.transport.errors import CollectiveTimeoutError

NODES = "abc"
HANGS_S = 0.3


@pytest.fixture(autouse=True)
def least_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", "least_lanes:LeastProvider")


def judged(seeds: range) -> list[Judged]:
    nodes = tuple((rank,) for rank in range(len(NODES)))
    return [draw(seed, nodes, "plain") for seed in seeds]


EVERY = [range(60), *by_night("plans", *(range(at, at + 500) for at in range(1000, 3000, 500)))]


@pytest.mark.parametrize("seeds", EVERY)
def test_accepted_plan_needs_room_for_one_message(seeds: range) -> None:
    plans = [one for one in judged(seeds) if one.is_accepted]
    with ThreadRanks(NODES) as ranks:
        for number, one in enumerate(plans):
            ranks.run(partial(accepted, one, number))
    assert len(plans) >= len(seeds) * 0.6


@pytest.mark.parametrize("seeds", EVERY)
def test_plan_refused_as_a_deadlock_waits_for_ever(seeds: range) -> None:
    plans = [one for one in judged(seeds) if one.hangs[0] is not None]
    assert len(plans) >= len(seeds) // 30
    for one in plans:
        with ThreadRanks(NODES) as ranks:
            errors = ranks.failures(partial(hang, one))
        assert one.hangs[0] is not None
        for plan, stands_at, error in zip(one.drawn.plans, one.hangs[0], errors, strict=True):
            waits = stands_at < len(plan.ops)
            assert not waits or isinstance(error, CollectiveTimeoutError), (one, error)


def accepted(one: Judged, seed: int, comm: Communicator) -> None:
    run_calls(comm, one, comm.nodes, "plain", Random(seed))


def hang(one: Judged, comm: Communicator) -> None:
    """Make a call in which no chunk is empty, with a deadline."""
    install(comm, one.drawn)
    comm._state.calls.timeout_s = HANGS_S
    plan = one.drawn.plans[comm.rank]
    if plan.collective == "barrier":
        comm.barrier()
    else:
        PlacedCall(collective_of(plan, 3000), comm.rank, "apart").run(comm)
