"""Random plans, run by the engine over every provider: what the proof says of each is true."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agreement import draw, judge, run_barrier, run_calls
from oracle import Collective
from placed_calls import PlacedCall
from random_plans import Drawn
from ranks import run_ranks
from tiers import by_night

import hccl_py
from hccl_py import Communicator
from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.language import Plan, PlanBuilder, Shape, data

DEADLINE_S = 60.0
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compression": "bf16"},
    "reproducible": {"reproducible": True},
}
NUM_PLANS = 900
JOBS = [
    *(("auto", nodes, "plain") for nodes in ("aa", "ab", "aaa", "aab", "aabb", "aabbc")),
    *(
        (transport, nodes, "plain")
        for transport in ("tcp", "zmq", "verbs_over_tcp")
        for nodes in ("ab", "abc", "abcd")
    ),
    *(("auto", nodes, "compressed") for nodes in ("ab", "aabb")),
    *((transport, "abc", "compressed") for transport in ("tcp", "zmq", "verbs_over_tcp")),
    *(("auto", nodes, "reproducible") for nodes in ("aa", "aab")),
    ("tcp", "abc", "reproducible"),
]
"""Provider, nodes, and the kind of communicator. Each makes calls in registered memory too."""

Times = list[list[tuple[float, float]]]


def run_seeds(
    rank: int, n: int, folder: str, way: str, seeds: tuple[int, int]
) -> tuple[Counter[str], list[tuple[float, float]]]:
    """Draw plans, each on one rank, and run all of them in one communicator.

    Return how many there were, and the times of barriers.
    """
    counts, barriers = Counter[str](), list[tuple[float, float]]()
    with Communicator(name=way, timeout_s=DEADLINE_S, **SETTINGS[way]) as comm:
        mine = {seed: draw(seed, comm.nodes, way) for seed in range(*seeds) if seed % n == rank}
        Path(folder, str(rank)).write_bytes(pickle.dumps(mine))
        comm.barrier()
        judged = {}
        for other in range(n):
            judged |= pickle.loads(Path(folder, str(other)).read_bytes())
        for seed, one in sorted(judged.items()):
            try:
                made = run_calls(comm, one, comm.nodes, way, Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}, {way}, {comm.nodes}: {one.problems}")
                raise
            barriers += [times for times in made if times is not None]
            kind = "accepted" if one.is_accepted else "refused"
            counts[kind] += 1
            counts[f"{kind} and run"] += bool(made)
            counts["calls"] += len(made)
    return counts, barriers


def check_barriers(times: Times) -> None:
    """Fail if a rank left a barrier before all had entered it."""
    for one in zip(*times, strict=True):
        assert max(entered for entered, _ in one) <= min(left for _, left in one)


@pytest.mark.parametrize(
    ("transport", "nodes", "way", "seeds"),
    [
        ("auto", "aab", "plain", (0, 60)),
        *by_night(
            "plans",
            *(
                (*job, (NUM_PLANS * at, NUM_PLANS * (at + 1)))
                for at, job in enumerate(JOBS, start=1)
            ),
        ),
    ],
)
def test_engine_does_what_the_proof_says(
    transport: str, nodes: str, way: str, seeds: tuple[int, int]
) -> None:
    def environment(rank: int) -> dict[str, str]:
        return {"HCCL_TRANSPORT": transport, "HCCL_NODE_ID": nodes[rank]}

    with tempfile.TemporaryDirectory() as folder:
        arguments = len(nodes), folder, way, seeds
        results = run_ranks(run_seeds, *arguments, env=environment, timeout_s=600)
    counts = results[0][0]
    print(transport, nodes, way, dict(counts))
    assert all(its == counts for its, _ in results)
    check_barriers([barriers for _, barriers in results])
    assert counts["accepted and run"] == counts["accepted"] > 0.3 * (seeds[1] - seeds[0])
    assert counts["refused and run"] > 0


def test_nightly_tier_runs_many_plans() -> None:
    assert NUM_PLANS * len(JOBS) >= 20_000


def rounds_behind_a_mate(me: int, _n: int, plan: PlanBuilder) -> None:
    """Rank 0 rounds its chunk for another node, after it sent the chunk to its own."""
    if me == 1:
        plan.recv_reduce([0, 2], data[0])
    else:
        plan.send([1], data[0])
    if me == 0:
        plan.send([2], data[0])
    elif me == 2:
        plan.recv(0, plan.scratch(0, like=data[0]))
    plan.end_step()
    if me == 1:
        plan.send([2], data[0])
        plan.send([0], data[0])
    else:
        plan.recv(1, data[0])
    plan.end_step()


def run_rounding(_rank: int, _n: int) -> None:
    nodes = ((0, 1), (2,))
    plans = []
    for rank in range(3):
        builder = PlanBuilder(Plan("all_reduce", "t", rank, 3, shape=Shape(1)), nodes)
        rounds_behind_a_mate(rank, 3, builder)
        plans.append(compress_scale_out(builder.finish(), nodes))
    judged = judge(Drawn(tuple(plans), equal_blocks=False, in_rank_order=False))
    assert judged.is_accepted
    with Communicator(timeout_s=DEADLINE_S, compression="bf16") as comm:
        for seed in range(4):
            run_calls(comm, judged, nodes, "compressed", Random(seed))


def test_message_of_a_step_has_what_its_chunk_held_before_a_later_send_rounds_it() -> None:
    run_ranks(run_rounding, 3, env=lambda rank: {"HCCL_NODE_ID": "aab"[rank]})


@hccl_py.algorithm("barrier", chunks=3)
def by_the_last_chunk(me: int, n: int, plan: PlanBuilder) -> None:
    others = [rank for rank in range(n) if rank != me]
    plan.send(others, data[2])
    plan.recv_reduce(others, data[2])


def run_barriers(_rank: int, n: int) -> list[tuple[float, float]]:
    with Communicator(timeout_s=DEADLINE_S, algorithms=[by_the_last_chunk]) as comm:
        return [run_barrier(comm, late) for late in range(n)]


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_barrier_of_several_chunks_holds_all_ranks(nodes: str) -> None:
    check_barriers(run_ranks(run_barriers, 2, env=lambda rank: {"HCCL_NODE_ID": nodes[rank]}))


def swap(num_chunks: int) -> CustomAlgorithm:
    """Two ranks exchange all: one as a whole, the other in chunks."""

    @hccl_py.algorithm("all_reduce", chunks=num_chunks)
    def write(me: int, _n: int, plan: PlanBuilder) -> None:
        chunks = [data[chunk] for chunk in range(num_chunks)]
        for piece in [data[:]] if me == 0 else chunks:
            plan.send([1 - me], piece)
        for piece in chunks if me == 0 else [data[:]]:
            plan.recv_reduce([1 - me], piece)

    return write


def flood(num_messages: int) -> CustomAlgorithm:
    """Rank 0 has more under way than a lane takes, and rank 1's message waits for rank 2's."""

    @hccl_py.algorithm("all_reduce")
    def write(me: int, _n: int, plan: PlanBuilder) -> None:
        slot = plan.scratch(0, like=data[:])
        if me == 0:
            for _ in range(num_messages):
                plan.send([1], data[:])
            plan.recv_reduce([1, 2], data[:])
            plan.send([1, 2], data[:])
            return
        if me == 1:
            plan.send([0], data[:])
            for _ in range(num_messages):
                plan.recv(0, slot)
            plan.send([2], data[:])
        else:
            plan.recv(1, slot)
            plan.send([0], data[:])
        plan.recv(0, data[:])

    return write


def run_extremes(rank: int, n: int) -> None:
    for at, one in enumerate([swap(5), swap(6), swap(7)] if n == 2 else [flood(100)]):
        with Communicator(name=f"{at}", timeout_s=DEADLINE_S, algorithms=[one]) as comm:
            for count in (0, 1, 13, 3000, 40_000, 400_000):
                placed = PlacedCall(Collective("all_reduce", "int32", count, n), rank, "registered")
                placed.run(comm)
                placed.check()


@pytest.mark.parametrize("transport", ["tcp", "zmq", "verbs_over_tcp"])
@pytest.mark.parametrize("n", [2, *by_night("plans", 3)])
def test_acknowledgements_come_past_messages_that_wait(n: int, transport: str) -> None:
    run_ranks(run_extremes, n, env={"HCCL_TRANSPORT": transport})
