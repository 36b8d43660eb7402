"""Whatever befalls one rank, every other one raises the same error within two seconds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator

import pytest
from injected_ranks import be_rank
from injections import FATAL, HARMLESS, ONE_NODE, TWO_NODES, Injection, Layout, Result, play
from ranks import RanksFailed

ROUNDS = int(os.environ.get("HCCL_TEST_ROUNDS", "1"))
FIRST = int(os.environ.get("HCCL_TEST_FIRST_ROUND", "0"))
BETWEEN_NODES = {"cut_off", *HARMLESS} - {"coordinator_closed"}

Cell = tuple[str, Layout]
CELLS = [
    pytest.param(kind, layout, id=f"{kind}-{layout.name}")
    for kind in (*FATAL, "sigstop", *HARMLESS)
    for layout in (ONE_NODE, TWO_NODES)
    if layout.num_nodes > 1 or kind not in BETWEEN_NODES
]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[dict[Cell, list[Result]]]:
    """Collect the rounds; print them at the end."""
    results: dict[Cell, list[Result]] = {}
    yield results
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    if terminal is None or ROUNDS < 2:
        return
    terminal.write_line("")
    terminal.write_line("| failure | ranks | rounds | median to raise, s | worst, s | leftovers |")
    terminal.write_line("|---|---|---|---|---|---|")
    for (kind, layout), rounds in results.items():
        times = [one.worst_s for one in rounds]
        raised = f"{statistics.median(times):.3f} | {max(times):.3f}"
        shown = "none raises | none raises" if kind in HARMLESS else raised
        left = sum(len(one.leftovers) for one in rounds)
        terminal.write_line(f"| {kind} | {layout.name} | {len(rounds)} | {shown} | {left} |")


@pytest.mark.timeout(60 + 30 * ROUNDS)
@pytest.mark.parametrize(("kind", "layout"), CELLS)
def test_injected_failure(table: dict[Cell, list[Result]], kind: str, layout: Layout) -> None:
    failures = []
    for number in range(FIRST, FIRST + ROUNDS):
        injection = Injection(kind, layout, number, "torch" if number % 3 == 2 else "native")
        try:
            result = play(be_rank, injection)
            table.setdefault((kind, layout), []).append(result)
            result.judge()
        except (AssertionError, RanksFailed) as failure:
            failures.append(f"round {number}: {failure}")
    assert not failures, f"{len(failures)} of {ROUNDS} rounds:\n" + "\n\n".join(failures[:3])
