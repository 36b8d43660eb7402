"""`--profile`: where the time of one call goes on each rank, as the engine counts it.

The engine times its parts only with --profile, because reading the clock slows small calls by a few
tenths of a microsecond. The times in the table above the profile are slower too.
"""

import time
from collections.abc import Sequence

import numpy as np

from hccl_py.bench.collective.cases import PAIRED
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.over_communicator import CommunicatorContender
from hccl_py.bench.collective.rank import Rank
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.communicator import Communicator

_ROUNDS = 9


Profile = dict[str, float]
"""The parts of one call on one rank, in us:

    late     waiting for ranks that entered the call later (`statistics()`)
    copy     copying into and out of shared memory
    reduce   reducing what was received
    wire     inside system calls that send and receive, between nodes
    transit  the rest of the engine's time: waiting for data in transit, and its own work
    python   outside the engine
    total    the whole call, by the caller's clock
"""


def start_profile(rank: Rank) -> None:
    """Have the engine of the first contender, a communicator, time its parts from now on."""
    _communicator(rank)._state.core.start_profile()


def profile(ranks: Ranks, options: Options, calls: int) -> list[Profile]:
    """Run more rounds of the case that the ranks have prepared; return each rank's profile.

    It is that of the round in the middle by time, as the time in the row above is.
    """
    what = f"profiling {options.collective}"
    rounds = [ranks.ask(_profile, calls, what=what) for _ in range(_ROUNDS)]
    rounds.sort(key=lambda one: sum(each["total"] for each in one))
    return rounds[_ROUNDS // 2]


def lines(profiles: Sequence[Profile]) -> list[str]:
    """Render each part: mean time and share over the ranks, then the least and the most share."""
    measured = np.array([list(one.values()) for one in profiles])
    shares = measured / measured[:, -1:]
    cells = [
        f"{name} {part.mean():.3g} us {of.mean():.0%} ({of.min():.0%}-{of.max():.0%})"
        for name, part, of in zip(profiles[0], measured.T, shares.T, strict=True)
    ]
    total = f"{measured[:, -1].mean():.3g} us in rounds of the profile alone"
    return [f"#   of {total}: {', '.join(cells[:-1])}"]


def is_profiled(options: Options) -> bool:
    """Return whether the engine times the parts of this case; it does not for send and recv."""
    return options.collective not in PAIRED


def _profile(rank: Rank, calls: int) -> Profile:
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
    """Return the engine's counters: late, moving, copy, reduce, wire."""
    counted = _communicator(rank).statistics()
    parts_ns = _communicator(rank)._state.core.profile()
    late_and_moving = [counted["waiting_s"] * 1e6, counted["moving_s"] * 1e6]
    return np.array([*late_and_moving, *(ns / 1e3 for ns in parts_ns)])


def _communicator(rank: Rank) -> Communicator:
    first = rank.contenders[0]
    assert isinstance(first, CommunicatorContender)
    return first.communicator
