"""The report of a run, from what its JSON holds: nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Document, Page
from hccl_py.bench.collective.results import Spread

COUNTED = ("fds", "threads", "mib")


def introduce(document: Document, page: Page) -> None:
    """Say what the run is on."""
    page.introduction(document, "times: milliseconds, median (p10-p90) over the starts")


def report(document: Document, page: Page) -> None:
    """Add the imports, then a row for each layout and contender, then what failed."""
    page.heading("Imports in ms")
    page.items([f"{each}: {_ms(times)}" for each, times in document["imports"].items()])
    for found in document["results"]:
        moments = list(found["fds"])
        head = ["", *moments, ""]
        steps = {step: [start[step] for start in found["seconds"]] for step in moments[1:]}
        rows = [["ms", "", *map(_ms, steps.values()), ""]]
        rows += [
            [what, *(f"{found[what][moment]:.0f}" for moment in moments), ""]
            for what in COUNTED[:2]
        ]
        since = [found["mib"][moment] - found["mib"][moments[0]] for moment in moments]
        rows.append(["MiB more", *(f"{value:.1f}" for value in since), ""])
        page.heading(f"{found['layout']}, {found['contender']}", level=3)
        page.table([head, *rows])
    if document["failures"]:
        page.heading("What failed")
        page.items(document["failures"])


def _ms(times_s: Sequence[float]) -> str:
    spread = Spread.of([1e3 * time_s for time_s in times_s])
    return f"{spread.median:.0f} ({spread.p10:.0f}-{spread.p90:.0f})"
