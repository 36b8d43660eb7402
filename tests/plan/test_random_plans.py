"""Plans that the proof accepts, run by the engine over every provider: each ends, and is right."""

from __future__ import annotations

import pytest
from oracle import Collective
from placed_calls import PlacedCall
from random_plans import random_algorithm
from ranks import run_ranks
from tiers import by_night

import hccl_py
from hccl_py import Communicator
from hccl_py.algorithms.custom import CustomAlgorithm, WrongAlgorithmError
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanBuilder, data

DEADLINE_S = 60.0
# None, fewer than chunks, tiny, what a TCP lane keeps a copy of, what it does not, many tiles.
COUNTS = (0, 1, 13, 3000, 40_000, 400_000)


def call(comm: Communicator, collective: str, root: int, count: int) -> None:
    """Make a call in registered memory, and compare what it leaves with numpy."""
    if collective == "barrier":
        comm.barrier()
        return
    what = Collective(collective, "int32", count, comm.world_size, root=root)
    placed = PlacedCall(what, comm.rank, "registered")
    placed.run(comm)
    placed.check()


def is_accepted(one: CustomAlgorithm, n: int) -> bool:
    try:
        for root in range(n) if COLLECTIVES[one.collective].rooted else (None,):
            one.verify((tuple(range(n)),), root)
    except WrongAlgorithmError:
        return False
    return True


def run(algorithms: list[CustomAlgorithm], counts: tuple[int, ...], name: str) -> None:
    """Run algorithms of different collectives in a communicator of their own."""
    with Communicator(name=name, timeout_s=DEADLINE_S, algorithms=algorithms) as comm:
        for one in algorithms:
            rooted = COLLECTIVES[one.collective].rooted
            for root in range(comm.world_size) if rooted else (0,):
                for count in counts:
                    try:
                        call(comm, one.collective, root, count)
                    except BaseException as error:
                        error.add_note(f"{one}, root {root}, {count} elements")
                        raise


def run_seeds(_rank: int, n: int, first: int, num_rounds: int) -> int:
    """Draw an algorithm for every collective in each round; return how many ran."""
    num_run = 0
    for begin in range(first, first + num_rounds):
        drawn = (random_algorithm(len(COLLECTIVES) * begin + at, n) for at in range(9))
        accepted = [one for one in drawn if is_accepted(one, n)]
        run(accepted, COUNTS, f"round {begin}")
        num_run += len(accepted)
    return num_run


PLACES = [
    *(("auto", nodes) for nodes in ("aa", "ab", "aaa", "aab", "abc", "aabb", "aabbc")),
    *(
        (transport, nodes)
        for transport in ("tcp", "zmq", "verbs_over_tcp")
        for nodes in ("ab", "abc", "abcd")
    ),
]
"""Provider and nodes."""


@pytest.mark.parametrize(
    ("transport", "nodes", "num_rounds"),
    [
        ("auto", "ab", 1),
        *(pytest.param(*place, 10, marks=pytest.mark.nightly("plans")) for place in PLACES),
    ],
)
def test_accepted_plan_ends_with_the_right_bytes(
    transport: str, nodes: str, num_rounds: int
) -> None:
    n = len(nodes)

    def environment(rank: int) -> dict[str, str]:
        return {"HCCL_TRANSPORT": transport, "HCCL_NODE_ID": nodes[rank]}

    num_run = run_ranks(run_seeds, n, 100 * n, num_rounds, env=environment, timeout_s=600)
    assert len(set(num_run)) == 1
    assert num_run[0] >= 8 * num_rounds, "hardly any plan was accepted"


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


def run_extremes(_rank: int, n: int) -> None:
    extremes = [swap(5), swap(6), swap(7)] if n == 2 else [flood(100)]
    for at, one in enumerate(extremes):
        run([one], COUNTS, f"extreme {at}")


@pytest.mark.parametrize("transport", ["tcp", "zmq", "verbs_over_tcp"])
@pytest.mark.parametrize("n", [2, *by_night("plans", 3)])
def test_acknowledgements_come_past_messages_that_wait(n: int, transport: str) -> None:
    env = {"HCCL_TRANSPORT": transport}
    run_ranks(run_extremes, n, env=env)
