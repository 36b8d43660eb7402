"""The tables of a run, from what its JSON holds: nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Document
from benchmarks.startup.rank import ALL_REDUCE, ALL_TO_ALL, CONNECTED, MOMENTS
from hccl_py.bench.collective.measure import Spread
from hccl_py.bench.collective.output.table import lay_out

_STEPS = (CONNECTED, ALL_REDUCE, ALL_TO_ALL)


def introduction(document: Document, markdown: bool) -> list[str]:
    """Say what the run is on."""
    machine = document["machine"]
    about = f"{machine['cpu']}, {machine['usable_cores']} usable cores; {document['date']}"
    lines = [document["command"], about, "times: milliseconds, median (p10-p90) over the starts"]
    return [f"- {line}" if markdown else f"# {line}" for line in lines]


def tables(document: Document, markdown: bool) -> list[str]:
    """Render the imports, then a row for each layout and contender, then what failed."""
    lines = [f"{each:34} {_ms(times)}" for each, times in document["imports"].items()]
    head = ["layout", "contender", *(f"{step} ms" for step in _STEPS)]
    rows = [head + [f"{what} {'/'.join(MOMENTS)}" for what in ("fds", "MiB")]]
    for found in document["results"]:
        times = (_ms([each[step] for each in found["seconds"]]) for step in _STEPS)
        fds = "/".join(f"{found['descriptors'][moment]:.0f}" for moment in MOMENTS)
        memory = [found["memory_mib"][moment] for moment in MOMENTS]
        mib = "/".join(f"{value - memory[0]:.1f}" for value in memory)
        rows.append([found["layout"], found["contender"], *times, fds, mib])
    lines += ["", *lay_out(rows, markdown)]
    return [*lines, *(f"failed: {each}" for each in document["failures"])]


def _ms(times_s: Sequence[float]) -> str:
    spread = Spread.of([1e3 * time_s for time_s in times_s])
    return f"{spread.median:.0f} ({spread.p10:.0f}-{spread.p90:.0f})"
