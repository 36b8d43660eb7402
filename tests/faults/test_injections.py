"""Whatever befalls one rank, every other one raises the same error within two seconds."""

import os
import statistics
from collections.abc import Iterable, Iterator

import pytest
from injected_ranks import be_rank
from injections import FATAL, HARMLESS, ONE_NODE, TWO_NODES, Injection, Layout, Result, play
from namespaces import Hosts
from ranks import RanksFailed

ROUNDS = int(os.environ.get("HCCL_TEST_ROUNDS", "1"))
BETWEEN_NODES = {"cut_off", *HARMLESS} - {"coordinator_closed"}
PAIR = Layout("2", 2, 1)  # no third rank sees that both live
PAIR_OF_NODES = Layout("2 x 1", 2, 2)
# Eight ranks share two cores by night.
FEW = Layout("2x2", 4, 2) if ROUNDS == 1 else TWO_NODES
BETWEEN_HOSTS = Layout("2 hosts x 2", 4, 2)
KINDS = (*FATAL, "sigstop", *HARMLESS)

Cell = tuple[str, Layout]


def _layouts(kind: str) -> tuple[Layout, ...]:
    """Return where a kind is tried: in the short form every other one on four ranks alone."""
    if kind == "cut_off":
        return (PAIR_OF_NODES, FEW)
    if kind in BETWEEN_NODES:
        return (FEW,)
    if kind == "control_garbage":
        return (PAIR, ONE_NODE, TWO_NODES) if ROUNDS > 1 else (PAIR,)
    if ROUNDS > 1:
        return (ONE_NODE, TWO_NODES)
    return ((ONE_NODE, FEW)[KINDS.index(kind) % 2],)


ALIKE = {"sigsegv", "os_exit", "half_frame", "full_disk", "control_garbage"}
ALIKE |= {"path_closed", "path_half_frame", "path_garbage"}
"""Kinds that end as others do, which are always tried."""
CELLS = [
    pytest.param(
        *(kind, layout),
        id=f"{kind}-{layout.name}",
        marks=pytest.mark.nightly("faults") if kind in ALIKE else (),
    )
    for kind in KINDS
    for layout in _layouts(kind)
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


def _try(
    injections: Iterable[Injection], results: list[Result], hosts: Hosts | None = None
) -> list[str]:
    """Play all rounds, the rest too when one has failed; return what went wrong."""
    failures = []
    for injection in injections:
        try:
            results.append(play(be_rank, injection, hosts))
            results[-1].judge()
        except (AssertionError, RanksFailed) as failure:
            failures.append(f"round {injection.round_number}: {failure}")
    return failures


@pytest.mark.timeout(60 + 30 * ROUNDS)
@pytest.mark.parametrize(("kind", "layout"), CELLS)
def test_injected_failure(table: dict[Cell, list[Result]], kind: str, layout: Layout) -> None:
    rounds = [
        Injection(kind, layout, number, "torch" if number % 3 == 2 else "native")
        for number in range(ROUNDS)
    ]
    failures = _try(rounds, table.setdefault((kind, layout), []))
    assert not failures, f"{len(failures)} of {ROUNDS} rounds:\n" + "\n\n".join(failures[:3])


@pytest.mark.nightly("hosts")
@pytest.mark.parametrize("kind", ["sigkill", "path_reset"])
def test_injected_failure_between_two_hosts(kind: str) -> None:
    with Hosts() as hosts:
        failures = _try([Injection(kind, BETWEEN_HOSTS, 0)], [], hosts)
    assert not failures, failures[0]
