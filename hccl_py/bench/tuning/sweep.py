"""What every rank does: measure each algorithm of each collective at each size, in step.

How often to call is decided from times that all ranks know, so no rank waits for another one that
stopped.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hccl_py.algorithms.table import ALGORITHMS, names_for, plans_for
from hccl_py.algorithms.tuner import UNKNOWN_SIZE
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.oracle import Call
from hccl_py.communicator import Communicator
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.network.identity import Identity

if TYPE_CHECKING:
    from hccl_py.bench.collective.rank import Rank

PING_PONG = "ping_pong"
_NUM_ROUNDS = 9
_FEWEST_ROUNDS = 3
_MOST_CALLS = 10_000
_ROUND_TRIPS = 50


class Measurement(NamedTuple):
    """The time of a call: an algorithm of a collective; or a round trip over a class of link."""

    collective: str
    algorithm: str
    bytes: int
    us: float  # the median of the rounds
    rounds_us: tuple[float, ...]  # of each the mean over calls and ranks


class Swept(NamedTuple):
    """What a sweep found out, the same on all ranks."""

    nodes: Nodes
    cores_per_node: float
    measurements: tuple[Measurement, ...]
    left_out: int  # number of cells for which there was no time
    machines: tuple[int, ...] = ()  # of each node, the first node on its machine; empty: its own


def sweep(rank: Rank, communicator: Communicator, sizes: Sequence[int], budget_s: float) -> Swept:
    """Measure round trips, then the collectives; the largest sizes are left out when time is up."""
    start, nodes = time.monotonic(), communicator.nodes
    cells = [(size, name) for size in sizes for name in _tunable()]
    found = list(_round_trips(rank, communicator))
    while cells:
        left_s = budget_s - agreed(communicator, time.monotonic() - start)
        if left_s <= 0:
            break
        size, collective = cells.pop(0)
        found += _collective(rank, communicator, collective, size, left_s / (1 + len(cells)))
    communicator._state.plans.choose_by(os.environ)
    machines = _machines(communicator)
    cores = agreed(communicator, len(os.sched_getaffinity(0))) / machines.count(machines[0])
    return Swept(nodes, cores, tuple(found), len(cells), machines)


def agreed(communicator: Communicator, value: float) -> float:
    """Return the mean over the ranks, the same bits on all of them."""
    both = np.array([value], np.float64)
    communicator.all_reduce(both)
    return float(both[0]) / communicator.world_size


def _tunable() -> list[str]:
    return [
        name
        for name in CASES
        if len(names_for(name)) > 1
        and name not in UNKNOWN_SIZE
        and not COLLECTIVES[name].meets  # a barrier has no size
    ]


def _collective(
    rank: Rank, communicator: Communicator, collective: str, size: int, cell_s: float
) -> Iterator[Measurement]:
    """Measure all algorithms in turns, so that what disturbs one disturbs all."""
    case, n = CASES[collective], communicator.world_size
    count, in_place = case.count(size, "float32", n), case.places[0] == "in"
    call = Call(n, 0, "sum" if case.reduces else "none", "float32", count, in_place=in_place)
    rank.prepare(collective, call)

    def time_s(algorithm: str, calls: int) -> float:
        communicator._state.plans.choose_by({"HCCL_ALGORITHM": f"{collective}={algorithm}"})
        return agreed(communicator, rank.time(0, calls, max(1, calls // 10)))

    start, alike = time.monotonic(), _alike(collective, communicator.nodes)
    round_s = cell_s / (len(alike) * _NUM_ROUNDS)
    calls = {first: _calls(round_s, time_s(first, 2)) for first, *_ in alike}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(_NUM_ROUNDS):
        if number >= _FEWEST_ROUNDS and agreed(communicator, time.monotonic() - start) > cell_s:
            break
        for name in calls:
            times[name].append(1e6 * time_s(name, calls[name]))
    num_bytes = case.num_bytes(call.count, "float32", n)
    for group in alike:
        for name in group:
            yield _measurement(collective, name, num_bytes, times[group[0]])


def _alike(collective: str, nodes: Nodes) -> list[list[str]]:
    """Group the algorithms that run the same ops on these nodes: their times differ by noise."""
    groups: dict[object, list[str]] = {}
    root = 0 if COLLECTIVES[collective].rooted else None
    for name in names_for(collective):
        plans = plans_for(collective, name, nodes, root)
        span = ALGORITHMS[collective, name].max_span(nodes)
        groups.setdefault((span, tuple((one.shape, one.ops) for one in plans)), []).append(name)
    return list(groups.values())


def _calls(round_s: float, call_s: float) -> int:
    return max(1, min(_MOST_CALLS, int(round_s / 1.1 / call_s)))


def _measurement(
    collective: str, algorithm: str, num_bytes: int, rounds_us: Sequence[float]
) -> Measurement:
    us = float(np.median(rounds_us))
    return Measurement(collective, algorithm, num_bytes, us, tuple(rounds_us))


def _round_trips(rank: Rank, communicator: Communicator) -> Iterator[Measurement]:
    """Time rank 0 with a rank of its node, and with one of another node, while the others wait."""
    nodes, n = communicator.nodes, communicator.world_size
    peers = {"scale_up": nodes[0][1:2], "scale_out": nodes[1][:1] if len(nodes) > 1 else ()}
    for link, peer in ((link, ranks[0]) for link, ranks in peers.items() if ranks):
        for num_bytes in (4, 4 << 10, 64 << 10, 1 << 20):
            rank.prepare(PING_PONG, Call(n, 0, "none", "uint8", num_bytes, pairs=((0, peer),)))
            rounds_us = []
            for _ in range(_NUM_ROUNDS):
                # Both ranks of the pair get half of a round trip, the others not a number.
                half_s = float(np.nan_to_num(rank.time(0, _ROUND_TRIPS, 5)))
                rounds_us.append(1e6 * n * agreed(communicator, half_s))
            yield _measurement(PING_PONG, link, num_bytes, rounds_us)


def _machines(communicator: Communicator) -> tuple[int, ...]:
    """Return for each node the first one whose cores it shares: several where nodes are emulated.

    Containers and network namespaces of one kernel share cores, unless they are bound to others.
    """
    identity = Identity.of_this_process()
    mine = np.array([zlib.crc32(repr((identity.boot_id, identity.cores)).encode())])
    every = np.zeros(communicator.world_size, mine.dtype)
    communicator.all_gather(every, mine)
    of_nodes = [int(every[node[0]]) for node in communicator.nodes]
    return tuple(of_nodes.index(one) for one in of_nodes)
