"""Peers that have processes of their own, beside hccl: MPICH, Open MPI and UCC.

A peer is started afresh for each case, before hccl is measured there: its rounds do not alternate
with those of hccl. `hccl_py/bench/peers` starts it, and compares many starts of everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hccl_py.bench.collective.analysis.trust import spread_doubts
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.measure import OVER_RANKS, Result, Row
from hccl_py.bench.collective.options import Options
from hccl_py.bench.peers.contenders import OPS, Contender, Start, find
from hccl_py.bench.peers.environments import PEERS
from hccl_py.bench.peers.processes import StartError

_SECONDS_PER_SIZE = 1.0


def find_all(options: Options) -> list[Contender]:
    """Return the peers that --compare names.

    Raises:
        StartError: one is not where the options say, or is not what it should be.
    """
    found = []
    for name in options.compare:
        if name in PEERS:
            try:
                found.append(find(name, options.environments))
            except StartError as error:
                raise StartError(f"--compare {name}: {error}") from error
    return found


def introduction(peers: Sequence[Contender], collectives: Sequence[Options]) -> list[str]:
    """Say which peers take part, how, and in which cases they do not."""
    if not peers:
        return []
    names = ", ".join(f"{peer.name} {peer.version}" for peer in peers)
    lines = [f"# {names}: in processes of their own, started before each table, not in turns"]
    left_out = {why for options in collectives if (why := _left_out(options))}
    return lines + [f"# without them: {why}" for why in sorted(left_out)]


def measure(
    peers: Sequence[Contender], options: Options, on_ask: Callable[[str], object]
) -> list[list[Result]]:
    """Start each peer once; return the results of each size, none for what peers do not measure.

    Raises:
        StartError: a start did not end well.
    """
    of_sizes: list[list[Result]] = [[] for _ in options.sizes]
    if _left_out(options):
        return of_sizes
    seconds = _SECONDS_PER_SIZE * len(options.sizes)
    start = Start(
        options.collective, options.world_size, options.sizes, seconds, calls=options.iters
    )
    for peer in peers:
        on_ask(f"measuring {options.collective} of {peer.name}")
        try:
            found = peer.measure(start)
        except StartError as error:
            raise StartError(f"{peer.name} at {options.collective}: {error}") from error
        for results, one in zip(of_sizes, found, strict=True):
            # ranks x rounds x calls; of UCC only the time that it prints is known.
            every_us = np.array(one.get("every_us", np.empty((0, 0, 0))))
            rank_us = every_us.mean(axis=2).T if every_us.size else np.empty((0, 0))
            rounds_us = [float(OVER_RANKS[options.average](each)) for each in rank_us]
            result = Result(
                *(peer.name, None, one["calls"] // max(1, len(rounds_us))),
                round_us=rounds_us or [one["time_us"]],
                rank_us=rank_us.tolist(),
                call_us=[every_us] if every_us.size else [],
                in_turns=False,
            )
            results.append(result)
    return of_sizes


def with_peers(row: Row, theirs: Sequence[Result]) -> Row:
    """Add results of peers to a row, with what is doubtful about them."""
    doubts = [
        f"{result.contender}: {doubt}"
        for result in theirs
        for doubt in spread_doubts(result.round_us, len(result.round_us) * result.calls_per_round)
    ]
    return replace(row, results=(*row.results, *theirs), doubts=(*row.doubts, *doubts))


def _left_out(options: Options) -> str:
    """Say why the peers do not measure a case; empty if they do."""
    case = CASES[options.collective]
    if options.collective not in OPS:
        return f"they do not measure {options.collective}"
    if case.has_data and options.dtype != "float32":
        return f"they measure float32, not {options.dtype}"
    if case.reduces and options.reduce_op != "sum":
        return f"they measure sums, not {options.reduce_op}"
    if case.has_root and options.root != 0:
        return f"they have root 0, not {options.root}"
    if options.in_place != (case.places[0] == "in"):
        other = "in" if options.in_place else "out of"
        return f"they do not measure {options.collective} {other} place"
    return ""
