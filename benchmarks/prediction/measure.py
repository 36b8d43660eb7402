"""Times every all_reduce algorithm on one node, and on two joined by slow or fast links."""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from hccl_py.algorithms.table import names_for
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.over_communicator import CommunicatorContender
from hccl_py.bench.collective.rank import Rank, prepare, time_calls
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.bench.namespaces import Hosts

COLLECTIVE = "all_reduce"
_NUM_ROUNDS = 3
_ROUND_S, _LONGEST_CASE_S = 0.4, 15.0
_MOST_CALLS = 300
_LONGEST_CALL_S = 6.0
_NEXT_SIZE = 4.0  # the next size is at least this many times as large


class Layout(NamedTuple):
    """Ranks on nodes, and the links between these."""

    nnodes: int
    nproc: int
    rate_mbit: float | None  # None: no limit


class TimedCase(NamedTuple):
    """One measurement."""

    nnodes: int
    nproc: int
    rate_mbit: float | None
    algorithm: str
    bytes: int
    rounds_us: tuple[float, ...]  # each the mean over calls and ranks


def merged(cases: Iterable[TimedCase]) -> list[TimedCase]:
    """Join the rounds of equal cases of several starts."""
    found: dict[TimedCase, tuple[float, ...]] = {}
    for case in cases:
        key = case._replace(rounds_us=())
        found[key] = (*found.get(key, ()), *case.rounds_us)
    return [key._replace(rounds_us=rounds_us) for key, rounds_us in found.items()]


def measure(layout: Layout, sizes: Sequence[int], queue_ms: float) -> Iterator[TimedCase]:
    """Measure all algorithms at all sizes; skips larger sizes of an algorithm that takes long.

    Args:
        layout: the ranks, and the links.
        sizes: bytes of a call, ascending.
        queue_ms: longest queue of a slow link.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: namespaces could not be made.
    """
    words = ["-g", str(layout.nproc), "--nnodes", str(layout.nnodes), "--timeout", "3600"]
    (options,) = parse(words)
    with ExitStack() as opened:
        hosts = None
        if layout.nnodes > 1:
            hosts = Hosts(num_hosts=layout.nnodes, rates_mbit=[layout.rate_mbit], queue_ms=queue_ms)
            opened.enter_context(hosts)
        ranks = opened.enter_context(Ranks(options, [Api("communicator")], hosts))
        slow: set[str] = set()
        for size in sizes:
            ranks.ask(prepare, options.call(size), what=f"preparing {size} bytes")
            for algorithm in [name for name in names_for(COLLECTIVE) if name not in slow]:
                rounds_us = tuple(_rounds_us(ranks, algorithm, f"{algorithm} at {size} bytes"))
                yield TimedCase(*layout, algorithm, size, rounds_us)
                if statistics.median(rounds_us) * 1e-6 * _NEXT_SIZE > _LONGEST_CALL_S:
                    slow.add(algorithm)


def _rounds_us(ranks: Ranks, algorithm: str, what: str) -> Iterator[float]:
    ranks.ask(_force, f"{COLLECTIVE}={algorithm}", what=what)

    def time_s(calls: int, warmup: int) -> float:
        return float(np.mean(ranks.ask(time_calls, 0, calls, warmup, what=what)))

    until = time.monotonic() + _LONGEST_CASE_S
    calls = max(1, min(_MOST_CALLS, int(_ROUND_S / time_s(1, 1))))
    for number in range(_NUM_ROUNDS):
        if number and time.monotonic() > until:
            return
        # The untimed calls also use up the burst of an idle link.
        yield 1e6 * time_s(calls, calls // 3 + 1)


def _force(rank: Rank, algorithms: str) -> None:
    """Make a rank's communicator use an algorithm."""
    (contender,) = rank.contenders
    assert isinstance(contender, CommunicatorContender)
    contender.force(algorithms)
