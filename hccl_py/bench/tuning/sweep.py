"""The sweep on every rank: measures each algorithm of each collective at each size.

Ranks decide how often to call by times averaged over all of them, so that all make the same calls.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from hccl_py.algorithms.choice.tuner import UNKNOWN_SIZE
from hccl_py.algorithms.table import ALGORITHMS, names_for, plans_for
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.measure import calls_of_round
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.over_communicator import CommunicatorContender
from hccl_py.bench.collective.rank import Rank, prepare, time_calls
from hccl_py.communicator import Communicator
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.system_calls import usable_cores

PING_PONG = "ping_pong"
_DTYPE = "float32"
_NUM_VISITS = 3
_ROUNDS, _MOST_ROUNDS = 4, 10
_FEWEST_ROUNDS = 2
_FAR = 3.0
"""Algorithms that take this many times the best one's time in the first visit get no other."""
_PING_PONG_ROUNDS = 9
_MOST_CALLS = 10_000
_ROUND_TRIPS = 50


class Measurement(NamedTuple):
    """The time of a call of an algorithm, or of a round trip over a class of link."""

    collective: str
    algorithm: str
    bytes: int
    us: float  # the median of the rounds
    rounds_us: tuple[float, ...]  # each the mean over calls and ranks


class Swept(NamedTuple):
    """The result of a sweep, the same on all ranks."""

    nodes: Nodes
    cores_per_node: float
    measurements: tuple[Measurement, ...]
    left_out: int  # number of collectives and sizes for which there was no time
    machines: tuple[int, ...] = ()  # for each node the first node of its machine; empty: itself


def sweep(rank: Rank, sizes: Sequence[int], budget_s: float) -> Swept:
    """Measure round trips, then collectives; leaves the largest sizes out when time is up.

    Each collective and size is visited several times, far apart, because ranks that share cores can
    run at one of two speeds for seconds. The rank's only contender is a communicator.
    """
    (contender,) = rank.contenders
    assert isinstance(contender, CommunicatorContender)
    communicator = contender.communicator
    start, nodes = time.monotonic(), communicator.nodes
    points = [SweepPoint.of(name, size, nodes) for size in sizes for name in _tunable()]
    found = list(_round_trips(rank, communicator))
    visits = [point for _ in range(_NUM_VISITS) for point in points]
    for done, point in enumerate(visits):
        left_s = budget_s - agreed(communicator, time.monotonic() - start)
        if left_s <= 0:
            break
        _visit(rank, contender, point, left_s / (len(visits) - done))
    contender.force(None)
    found += [one for point in points for one in point.measurements(communicator.world_size)]
    left_out = sum(not point.times for point in points)
    machines = _machines(communicator)
    cores = agreed(communicator, len(usable_cores())) / machines.count(machines[0])
    return Swept(nodes, cores, tuple(found), left_out, machines)


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


@dataclass
class SweepPoint:
    """A collective and a size.

    Attributes:
        alike: groups of algorithms that run the same ops on these nodes; only the first of a group
            is measured.
        calls: calls of a round of each measured algorithm.
        times: microseconds of each round of each measured algorithm.
    """

    collective: str
    size: int
    alike: list[list[str]]
    calls: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, collective: str, size: int, nodes: Nodes) -> SweepPoint:
        """Group the algorithms of a collective."""
        groups: dict[object, list[str]] = {}
        root = 0 if COLLECTIVES[collective].rooted else None
        for name in names_for(collective):
            plans = plans_for(collective, name, nodes, root)
            span = ALGORITHMS[collective, name].max_span(nodes)
            groups.setdefault((span, tuple((one.shape, one.ops) for one in plans)), []).append(name)
        return cls(collective, size, list(groups.values()))

    def call(self, n: int) -> Call:
        """Return the call among n ranks."""
        case = CASES[self.collective]
        count, in_place = case.count(self.size, _DTYPE, n), case.places[0] == "in"
        op = "sum" if case.reduces else "none"
        return Call(self.collective, n, 0, op, _DTYPE, count, in_place=in_place)

    def near(self) -> list[str]:
        """Return the measured algorithms that may be the fastest; all before the first visit."""
        medians = {name: float(np.median(times)) for name, times in self.times.items()}
        return [
            *(name for name, us in medians.items() if us <= _FAR * min(medians.values())),
            *(first for first, *_ in self.alike if first not in medians),
        ]

    def measurements(self, n: int) -> Iterator[Measurement]:
        """Yield the time of every algorithm; nothing before the first visit."""
        num_bytes = CASES[self.collective].num_bytes(self.call(n).count, _DTYPE, n)
        for group in self.alike if self.times else ():
            for name in group:
                yield _measurement(self.collective, name, num_bytes, self.times[group[0]])


def _visit(rank: Rank, contender: CommunicatorContender, at: SweepPoint, visit_s: float) -> None:
    """Measure the algorithms in turns, so that a disturbance affects all of them."""
    start, names, communicator = time.monotonic(), at.near(), contender.communicator
    prepare(rank, at.call(communicator.world_size))

    def time_s(algorithm: str, calls: int) -> float:
        contender.force(f"{at.collective}={algorithm}")
        return agreed(communicator, time_calls(rank, 0, calls, max(1, calls // 10)))

    if not at.calls:
        round_s = visit_s / (len(names) * _ROUNDS)
        with_warmup_s = round_s / 1.1
        at.calls = {
            name: calls_of_round(partial(time_s, name), with_warmup_s, _MOST_CALLS)
            for name in names
        }
    for number in range(_MOST_ROUNDS):
        is_late = agreed(communicator, time.monotonic() - start) > visit_s
        if number >= _FEWEST_ROUNDS and is_late:
            break
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            at.times.setdefault(name, []).append(1e6 * time_s(name, at.calls[name]))


def _measurement(
    collective: str, algorithm: str, num_bytes: int, rounds_us: Sequence[float]
) -> Measurement:
    us = float(np.median(rounds_us))
    return Measurement(collective, algorithm, num_bytes, us, tuple(rounds_us))


def _round_trips(rank: Rank, communicator: Communicator) -> Iterator[Measurement]:
    """Time round trips of rank 0 with a rank of its node, then with one of another node."""
    nodes, n = communicator.nodes, communicator.world_size
    peers = {"scale_up": nodes[0][1:2], "scale_out": nodes[1][:1] if len(nodes) > 1 else ()}
    for link, peer in ((link, ranks[0]) for link, ranks in peers.items() if ranks):
        for num_bytes in (4, 4 << 10, 64 << 10, 1 << 20):
            prepare(rank, Call(PING_PONG, n, 0, "none", "uint8", num_bytes, pairs=((0, peer),)))
            rounds_us = []
            for _ in range(_PING_PONG_ROUNDS):
                # Both ranks of the pair get half of a round trip, the others not a number.
                half_s = float(np.nan_to_num(time_calls(rank, 0, _ROUND_TRIPS, 5)))
                rounds_us.append(1e6 * n * agreed(communicator, half_s))
            yield _measurement(PING_PONG, link, num_bytes, rounds_us)


def _machines(communicator: Communicator) -> tuple[int, ...]:
    """Return for each node the first node that has the same cores; emulated nodes share them.

    Containers and network namespaces of one kernel do too, unless they are bound to other cores.
    """
    identity = Identity.of_this_process()
    mine = np.array([zlib.crc32(repr((identity.boot_id, identity.cores)).encode())])
    every = np.zeros(communicator.world_size, mine.dtype)
    communicator.all_gather(every, mine)
    of_nodes = [int(every[node[0]]) for node in communicator.nodes]
    return tuple(of_nodes.index(one) for one in of_nodes)
