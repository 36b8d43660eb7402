"""The report of a run, from its JSON; measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchmarks.harness import Document, Page
from benchmarks.peers.cases import PeerCase, cases, count_steady
from benchmarks.peers.contenders import LIMITS, OURS
from hccl_py.bench.collective.output.text import number, size_text

_OFTEN = 0.9
_UNCACHED = 1 << 20  # smaller buffers are in the caches: a share of memory's speed means nothing
_NUM_WORST = 10
_WANTED = (1, 1.5, 2, 3)


def introduce(document: Document, page: Page) -> None:
    """Add the machine, the contenders, and the peers that are missing."""
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
    """Add the counts, the worst cases, every case, where hccl loses, and what failed."""
    copy = float(np.median(_copies_gb_per_s(document)))
    all_cases = cases(document)
    page.heading("All cases")
    page.items(_summary(all_cases))
    page.heading("The lowest ratios")
    page.table(_worst(all_cases))
    for title in dict.fromkeys(case.title for case in all_cases):
        page.heading(title, level=3)
        page.table(_table([case for case in all_cases if case.title == title], copy))
    page.heading("Where ours loses")
    page.items(losses(all_cases), none="nowhere")
    page.items(_out_of_reach(all_cases))
    page.failures(document, "Starts that failed")


def _copies_gb_per_s(document: Document) -> list[float]:
    return [each["memcpy_gb_per_s"] for each in document["probes"]]


def _summary(all_cases: Sequence[PeerCase]) -> list[str]:
    """Count the cases that reach certain ratios."""
    rated = [(ratio, case) for case in all_cases if (ratio := case.ratio) is not None]
    firsts = [ratio for case in all_cases if (ratio := case.first) is not None]
    if not rated:
        return ["no peer ended a start"]

    def reach(wanted: float, chosen: Callable[[PeerCase], bool] = lambda _: True) -> str:
        ratios = [ratio for ratio, case in rated if chosen(case)]
        return f"{wanted:g}x in {sum(ratio >= wanted for ratio in ratios)} of {len(ratios)}"

    lines = [
        f"ratio of at least {', '.join(map(reach, _WANTED))}",
        *(
            [f"of the first calls 1x in {sum(it >= 1 for it in firsts)} of {len(firsts)}"]
            if firsts
            else []
        ),
        f"from 8 KB {reach(2, lambda case: case.size >= 8 << 10)}, from 1 MB "
        f"{reach(3, lambda case: case.size >= 1 << 20)}, on 8 ranks "
        f"{reach(2, lambda case: case.ranks == 8)}",
    ]
    starts: dict[str, list[list[float]]] = {}
    for case in all_cases:
        by_cores = {f"{OURS[case.group]} on {kind} cores": us for kind, us in case.by_cores.items()}
        for name, times in (case.starts_us | by_cores).items():
            starts.setdefault(name, []).append(times)
    counts = []
    for name, them in starts.items():
        if name in LIMITS:
            continue
        steady = sum(count_steady(times) >= _OFTEN * len(times) for times in them)
        counts.append(f"{name} {steady} of {len(them)}")
    return [*lines, f"cases with nine of ten starts within 1.5 times the best: {', '.join(counts)}"]


def _rated(all_cases: Iterable[PeerCase]) -> list[tuple[float, PeerCase, str, str]]:
    """Return ratio, case, our time and the best peer's, the lowest ratios first."""
    found = []
    for case in all_cases:
        ratio, ours, best = case.ratio, case.ours, case.best_peer
        if ratio is not None and ours is not None and best is not None:
            peers = f"{number(case.spreads[best].median)} us"
            found.append((ratio, case, f"{number(ours.median)} us", f"{peers} {best}"))
    return sorted(found, key=lambda each: each[0])


def _worst(all_cases: Sequence[PeerCase]) -> list[list[str]]:
    table = [["case", "size", "ours", "best peer", "ratio", "at most", "steady"]]
    for ratio, case, ours, peer in _rated(all_cases)[:_NUM_WORST]:
        size = size_text(case.size) if case.size else ""
        table.append(
            [case.title, size, ours, peer, f"{ratio:.2f}x", _times(case.at_most), case.steady]
        )
    return table


def losses(all_cases: Sequence[PeerCase]) -> list[str]:
    """Name the cases where a peer is faster, the worst first."""
    return [
        f"{ratio:.2f}x {case.title}, {size_text(case.size)}: ours {ours}, {peer}{_note(case)}"
        for ratio, case, ours, peer in _rated(all_cases)
        if ratio < 1
    ]


def _out_of_reach(all_cases: Sequence[PeerCase]) -> list[str]:
    """Return in how many cases the limit itself would not reach certain ratios."""
    limits = [limit for case in all_cases if (limit := case.at_most) is not None]
    if not limits:
        return []
    counts = [f"{wanted}x in {sum(limit < wanted for limit in limits)}" for wanted in _WANTED]
    what = "bare copies" if all_cases[0].num_hosts == 1 else "plain sockets"
    return [f"{what} themselves would miss {', '.join(counts)} of {len(limits)} cases"]


def _table(rows: Sequence[PeerCase], copy_gb_per_s: float) -> list[list[str]]:
    names = list(dict.fromkeys(name for row in rows for name in row.starts_us))
    between = rows[0].num_hosts > 1
    share = "of sockets" if between else "of memcpy"
    table = [["size", *names, "ratio", "first", "at most", "busbw GB/s", share, "steady", ""]]
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
        ratios = [best, _times(row.first), _times(row.at_most)]
        table.append([size_text(row.size), *times, *ratios, *shares, row.steady, note])
    return table


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _note(case: PeerCase) -> str:
    """Return why a row cannot be trusted, if so."""
    noisy = ", ".join(f"{name} {spread:.1f}" for name, spread in case.noisy.items())
    return f", not to be trusted: p90/p10 of {noisy}" if noisy else ""
