"""`--profile`: where the time of one call goes, counted by the engine itself, rank by rank.

The engine times its parts only with --profile: a clock round every part slows small calls down by a
few tenths of a microsecond, in the table above the profile too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.over_communicator import CommunicatorContender
from hccl_py.bench.collective.rank import Rank
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.communicator import Communicator

_CALLS = 200
_LEAST_US = 50_000


Profile = dict[str, float]
"""The parts of one call on one rank, in us:

    late     waiting for ranks that came late to the call (`statistics()`)
    copy     in shared memory, what a rank copies in and out
    reduce   adding up what came
    wire     inside the kernel's calls that send and receive, between nodes
    transit  the rest of the call: waiting for data under way, and the engine's own work
    python   from the caller's clock, outside the engine
    total    all of it
"""


def start_profile(rank: Rank) -> None:
    """Have the first contender's engine, a communicator's, time its parts from now on."""
    _communicator(rank)._state.core.start_profile()


def profile(ranks: Ranks, options: Options, call_us: float, least_calls: int) -> list[Profile]:
    """Run one more round of the case that the ranks are prepared for; return one for each rank."""
    calls = max(least_calls, min(_CALLS, round(_LEAST_US / call_us)))
    return ranks.ask(_profile, calls, what=f"profiling {options.collective}")


def lines(profiles: Sequence[Profile]) -> list[str]:
    """Render the mean over the ranks, and its share of a rank's time, least and most."""
    measured = np.array([list(one.values()) for one in profiles])
    shares = measured / measured[:, -1:]
    cells = [
        f"{name} {part.mean():.3g} us {of.mean():.0%} ({of.min():.0%}-{of.max():.0%})"
        for name, part, of in zip(profiles[0], measured.T, shares.T, strict=True)
    ]
    return [f"#   of {measured[:, -1].mean():.3g} us: {', '.join(cells[:-1])}"]


def is_profiled(options: Options) -> bool:
    """Return whether the engine times the parts of a collective, unlike of send and recv."""
    return options.collective not in ("send_recv", "ping_pong")


def _profile(rank: Rank, calls: int) -> Profile:
    """Run a round in a rank."""
    call = rank.calls[0]
    rank.barriers[0]()
    call()
    before = _counted_us(rank)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    total = (time.perf_counter() - start) * 1e6 / calls
    late, moving, copy, reduce, wire = map(float, (_counted_us(rank) - before) / calls)
    parts = {"late": late, "copy": copy, "reduce": reduce, "wire": wire}
    parts["transit"] = max(0.0, moving - copy - reduce - wire)
    return parts | {"python": max(0.0, total - late - moving), "total": total}


def _counted_us(rank: Rank) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what the engine has counted: late, moving, copy, reduce, wire."""
    counted = _communicator(rank).statistics()
    parts_ns = _communicator(rank)._state.core.profile()
    late_and_moving = [counted["waiting_s"] * 1e6, counted["moving_s"] * 1e6]
    return np.array([*late_and_moving, *(ns / 1e3 for ns in parts_ns)])


def _communicator(rank: Rank) -> Communicator:
    first = rank.contenders[0]
    assert isinstance(first, CommunicatorContender)
    return first.communicator
