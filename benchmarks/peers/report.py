"""The report of a run, from what its JSON holds: nothing here measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchmarks.harness import Document, Page
from benchmarks.peers.cells import Cell, cells, count_steady
from benchmarks.peers.contenders import LIMITS, OURS
from hccl_py.bench.collective.output.text import number, size_text

_OFTEN = 0.9
_UNCACHED = 1 << 20  # below, a share of the speed of memory says nothing
_NUM_WORST = 10
_WANTED = (1, 2, 3)


def introduce(document: Document, page: Page) -> None:
    """Say what the run is on, who takes part and who does not."""
    taking_part = ", ".join(
        f"{each['name']} {each['version']} ({each['group']})" for each in document["contenders"]
    )
    copies = _copies_gb_per_s(document)
    over = f" ({min(copies):.1f}-{max(copies):.1f} over the rounds)" if len(copies) > 1 else ""
    page.introduction(
        document,
        taking_part,
        *document["missing"],
        f"memcpy of 64 MiB by one thread: {np.median(copies):.1f}{over} GB/s",
        "a start's time: median over its blocks of the mean call of the slowest rank, in us; "
        "shown: median (p10-p90) over the starts; ratio: best peer / ours",
    )


def report(document: Document, page: Page) -> None:
    """Add the counts, the worst cells, every cell, where ours loses, and what failed."""
    copy = float(np.median(_copies_gb_per_s(document)))
    all_cells = cells(document)
    page.heading("All cells")
    page.items(_summary(all_cells))
    page.heading("The lowest ratios")
    page.table(_worst(all_cells))
    for title in dict.fromkeys(cell.title for cell in all_cells):
        page.heading(title, level=3)
        page.table(_table([cell for cell in all_cells if cell.title == title], copy))
    page.heading("Where ours loses")
    page.items(losses(all_cells), none="nowhere")
    page.items(_out_of_reach(all_cells))
    page.failures(document, "Starts that failed")


def _copies_gb_per_s(document: Document) -> list[float]:
    return [each["memcpy_gb_per_s"] for each in document["probes"]]


def _summary(all_cells: Sequence[Cell]) -> list[str]:
    """Count the cells that reach what a user may want of them."""
    rated = [(ratio, cell) for cell in all_cells if (ratio := cell.ratio) is not None]
    if not rated:
        return ["no peer ended a start"]

    def reach(wanted: float, chosen: Callable[[Cell], bool] = lambda _: True) -> str:
        ratios = [ratio for ratio, cell in rated if chosen(cell)]
        return f"{wanted:g}x in {sum(ratio >= wanted for ratio in ratios)} of {len(ratios)}"

    lines = [
        f"ratio of at least {', '.join(map(reach, _WANTED))}",
        f"from 8 KB {reach(2, lambda cell: cell.size >= 8 << 10)}, from 1 MB "
        f"{reach(3, lambda cell: cell.size >= 1 << 20)}, on 8 ranks "
        f"{reach(2, lambda cell: cell.ranks == 8)}",
    ]
    starts: dict[str, list[list[float]]] = {}
    for cell in all_cells:
        by_cores = {f"{OURS[cell.group]} on {kind} cores": us for kind, us in cell.by_cores.items()}
        for name, times in (cell.starts_us | by_cores).items():
            starts.setdefault(name, []).append(times)
    counts = []
    for name, them in starts.items():
        if name in LIMITS:
            continue
        steady = sum(count_steady(times) >= _OFTEN * len(times) for times in them)
        counts.append(f"{name} {steady} of {len(them)}")
    return [*lines, f"cells with nine of ten starts within 1.5 times the best: {', '.join(counts)}"]


def _rated(all_cells: Iterable[Cell]) -> list[tuple[float, Cell, str, str]]:
    """Return ratio, cell, our time and the best peer's, the lowest ratios first."""
    found = []
    for cell in all_cells:
        ratio, ours, best = cell.ratio, cell.ours, cell.best_peer
        if ratio is not None and ours is not None and best is not None:
            peers = f"{number(cell.spreads[best].median)} us"
            found.append((ratio, cell, f"{number(ours.median)} us", f"{peers} {best}"))
    return sorted(found, key=lambda each: each[0])


def _worst(all_cells: Sequence[Cell]) -> list[list[str]]:
    table = [["case", "size", "ours", "best peer", "ratio", "at most", "steady"]]
    for ratio, cell, ours, peer in _rated(all_cells)[:_NUM_WORST]:
        size = size_text(cell.size) if cell.size else ""
        table.append([cell.title, size, ours, peer, f"{ratio:.2f}x", _limit(cell), cell.steady])
    return table


def losses(all_cells: Sequence[Cell]) -> list[str]:
    """Name the cells where a peer is faster, the worst first."""
    return [
        f"{ratio:.2f}x {cell.title}, {size_text(cell.size)}: ours {ours}, {peer}{_note(cell)}"
        for ratio, cell, ours, peer in _rated(all_cells)
        if ratio < 1
    ]


def _out_of_reach(all_cells: Sequence[Cell]) -> list[str]:
    """Say in how many cells the limit would not reach a ratio."""
    limits = [limit for cell in all_cells if (limit := cell.at_most) is not None]
    if not limits:
        return []
    counts = [f"{wanted}x in {sum(limit < wanted for limit in limits)}" for wanted in _WANTED]
    what = "bare copies" if all_cells[0].num_hosts == 1 else "plain sockets"
    return [f"{what} themselves would miss {', '.join(counts)} of {len(limits)} cells"]


def _table(rows: Sequence[Cell], copy_gb_per_s: float) -> list[list[str]]:
    names = list(dict.fromkeys(name for row in rows for name in row.starts_us))
    between = rows[0].num_hosts > 1
    share = "of sockets" if between else "of memcpy"
    table = [["size", *names, "ratio", "at most", "busbw GB/s", share, "steady", ""]]
    for row in rows:
        spreads, busbw = row.spreads, row.busbw_gb_per_s
        times = [
            f"{number(it.median)} ({number(it.p10)}-{number(it.p90)})" if it else "-"
            for it in map(spreads.get, names)
        ]
        best = "" if row.ratio is None else f"{row.ratio:.2f}x {row.best_peer}"
        of = row.of_limit if between else busbw and row.size >= _UNCACHED and busbw / copy_gb_per_s
        shares = [f"{busbw:.2f}" if busbw else "", f"{of:.0%}" if of else ""]
        note = _note(row).lstrip(", ")
        table.append([size_text(row.size), *times, best, _limit(row), *shares, row.steady, note])
    return table


def _limit(cell: Cell) -> str:
    return "" if cell.at_most is None else f"{cell.at_most:.2f}x"


def _note(cell: Cell) -> str:
    """Say why a row is not to be trusted, if so."""
    noisy = ", ".join(f"{name} {spread:.1f}" for name, spread in cell.noisy.items())
    return f", not to be trusted: p90/p10 of {noisy}" if noisy else ""
