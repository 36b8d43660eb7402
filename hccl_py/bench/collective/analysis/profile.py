"""`--profile`: where the time of one call goes, counted by the engine itself, rank by rank.

    late     waiting for ranks that came late to the call (`statistics()`)
    copy     in shared memory: what a rank copies in and out
    reduce   adding up what came
    wire     inside the kernel's calls that send and receive, between nodes
    transit  the rest of the call: waiting for data that is under way, and the engine's own work
    python   from the caller's clock, outside the engine

The engine times its parts only with --profile: a clock round every part slows small calls down by a
few tenths of a microsecond, in the table above the profile too.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from hccl_py.bench.collective.measure import Profile, Row
from hccl_py.bench.collective.messages import Counted
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.ranks import Ranks

PARTS = ("late", "copy", "reduce", "wire", "transit", "python")

_CALLS = 200
_LEAST_US = 50_000


def profile(ranks: Ranks, options: Options, row: Row) -> list[Profile]:
    """Run one more round of the case that the ranks are prepared for; return one for each rank."""
    what = f"profiling {row.size} B of {options.collective}"
    first = row.results[0]
    calls = max(first.calls_per_round, min(_CALLS, round(_LEAST_US / first.time_us.median)))
    asked = ranks.ask("profile", calls, what=what)
    return [_parts(each, calls) for each in asked]


def _parts(asked: tuple[float, Counted, Counted], calls: int) -> Profile:
    call_s, before, after = asked
    per_call = np.subtract(astuple(after), astuple(before)) / calls * 1e6
    late, moving, copy, reduce, wire = map(float, per_call)
    transit = max(0.0, moving - copy - reduce - wire)
    python = max(0.0, call_s * 1e6 - late - moving)
    return Profile(late, copy, reduce, wire, transit, python, call_s * 1e6)


def lines(profiles: list[Profile]) -> list[str]:
    """Render the mean over the ranks, and its share of a rank's time, least and most."""
    measured = np.array([astuple(one) for one in profiles])
    total = float(measured[:, -1].mean())
    parts = measured[:, :-1]
    shares = parts / measured[:, -1:]
    cells = [
        f"{name} {mean:.3g} us {share:.0%} ({least:.0%}-{most:.0%})"
        for name, mean, share, least, most in zip(
            *(PARTS, parts.mean(axis=0), shares.mean(axis=0), shares.min(axis=0)),
            shares.max(axis=0),
            strict=True,
        )
    ]
    return [f"#   of {total:.3g} us: {', '.join(cells)}"]


def is_profiled(options: Options) -> bool:
    """Say whether the engine counts the parts of a collective: not those of send and recv."""
    return options.collective not in ("send_recv", "ping_pong")
