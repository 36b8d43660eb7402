"""Times of every all_reduce algorithm on one node, and on two joined by slow and fast links."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from hccl_py.algorithms.table import names_for
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contenders import APIS
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.bench.namespaces import Hosts

COLLECTIVE = "all_reduce"
SIZES = tuple(1 << exponent for exponent in (16, 20, 24, 26))
QUEUE_MS = 1000.0
"""What a slow link keeps for later: a short queue drops packets, which is another experiment."""
_NUM_ROUNDS = 3
_ROUND_S = 0.4
_MOST_CALLS = 300
_LONGEST_CALL_S = 6.0
_NEXT_SIZE = 4.0  # times this one, at least


class Layout(NamedTuple):
    """Ranks on nodes, and the links between these."""

    nnodes: int
    nproc: int
    rate_mbit: float | None  # None: no limit


class Cell(NamedTuple):
    """One measurement."""

    nnodes: int
    nproc: int
    rate_mbit: float | None
    algorithm: str
    bytes: int
    us: float  # median of the rounds, each the mean over calls and ranks
    rounds_us: tuple[float, ...]
    retransmits: int = 0  # packets that TCP sent again


def merged(cells: Iterable[Cell]) -> list[Cell]:
    """Put the rounds of equal cells of several runs together."""
    found: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        key = cell[:5]
        rounds_us = (*(found[key].rounds_us if key in found else ()), *cell.rounds_us)
        again = cell.retransmits + (found[key].retransmits if key in found else 0)
        us = statistics.median(rounds_us)
        found[key] = cell._replace(us=us, rounds_us=rounds_us, retransmits=again)
    return list(found.values())


def measure(
    layout: Layout, sizes: Sequence[int] = SIZES, queue_ms: float = QUEUE_MS
) -> Iterator[Cell]:
    """Measure all algorithms at all sizes; larger sizes are left out once a call takes long.

    Args:
        layout: the ranks, and the links.
        sizes: bytes of a call, ascending.
        queue_ms: how much a slow link keeps for later.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
        NamespaceError: there could be no namespaces.
    """
    options = _options(layout)
    with ExitStack() as opened:
        hosts = None
        if layout.nnodes > 1:
            hosts = Hosts(num_hosts=layout.nnodes, rates_mbit=[layout.rate_mbit], queue_ms=queue_ms)
            opened.enter_context(hosts)
        ranks = opened.enter_context(Ranks(options, [APIS["communicator"]], hosts))
        slow: set[str] = set()
        for size in sizes:
            case, n = CASES[COLLECTIVE], options.world_size
            call = Call(n, 0, "sum", "float32", case.count(size, "float32", n), in_place=True)
            ranks.ask("prepare", COLLECTIVE, call, what=f"preparing {size} bytes")
            for algorithm in names_for(COLLECTIVE):
                if algorithm in slow:
                    continue
                before = hosts.retransmits() if hosts else 0
                cell = _cell(ranks, layout, algorithm, size)
                yield cell._replace(retransmits=(hosts.retransmits() if hosts else 0) - before)
                if cell.us * 1e-6 * _NEXT_SIZE > _LONGEST_CALL_S:
                    slow.add(algorithm)


def _options(layout: Layout) -> Options:
    words = ["-g", str(layout.nproc), "--nnodes", str(layout.nnodes), "--api", "communicator"]
    words += ["--timeout", "3600"]
    if layout.nnodes > 1:
        words += ["--veth", "1"]
    (options,) = parse(words)
    return dataclasses.replace(options, rate_mbit=layout.rate_mbit)


def _cell(ranks: Ranks, layout: Layout, algorithm: str, size: int) -> Cell:
    what = f"measuring {algorithm} at {size} bytes"
    ranks.ask("call", 0, "force", f"{COLLECTIVE}={algorithm}", what=what)

    def time_s(calls: int, warmup: int) -> float:
        return float(np.mean(ranks.ask("time", 0, calls, warmup, what=what)))

    began = time.monotonic()
    first_s = time_s(1, 1)
    calls = max(1, min(_MOST_CALLS, int(_ROUND_S / first_s)))
    rounds: list[float] = []
    while len(rounds) < _NUM_ROUNDS and (len(rounds) < 1 or time.monotonic() - began < 15):
        # The untimed calls also use up what a link that stood still may send at once.
        rounds.append(1e6 * time_s(calls, calls // 3 + 1))
    return Cell(*layout, algorithm, size, statistics.median(rounds), tuple(rounds))
